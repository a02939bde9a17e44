//! Mistakes made on purpose, so that tests can show that they would be seen: canaries of the simulator.
//!
//! A mistake is made by the thread that asked for it ([`make`]), at the one place in the engine that asks whether it is
//! to be made. This module exists with the feature `faults` alone, which only the tests of `testkit` turn on; without
//! it [`is_made`] is the constant `false`, and nothing of the mistakes is compiled into a program.
//!
//! Left out: mistakes of executors, which toys make (`foretoken_testkit::toy`).

/// A mistake in the bookkeeping of pages, or around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// None: the healthy engine.
    #[default]
    None,
    /// A page that several hold can be had by others as soon as one of them lets go of it.
    PageGivenBackEarly,
    /// A cached prefix is found by its hash, of three bits, and its tokens are not compared.
    PrefixByHashAlone,
    /// The prefixes of all tenants are everybody's.
    PrefixOfAnotherTenant,
    /// Of a prefix in a cache group that keeps a window, the first page of its last window may be gone.
    WindowNotHeld,
    /// A page that agrees with a text for some rows is shared like one that agrees for all, and written to.
    SharedPageWritten,
    /// A page of its own that a sequence gets for a prefix that ends inside one is not filled.
    RowsNotCopied,
    /// A sequence that was preempted goes on one token behind the rows that it has.
    ResumedLate,
    /// A sequence that is preempted keeps its draft for the pass in which it comes back.
    DraftKept,
    /// A sequence that is preempted leaves the row behind its text, which a refused draft wrote, among the cached ones.
    RefusedRowKept,
    /// Rows of a prompt that is to be scored are adopted, which have no logits.
    UnscoredAdopted,
    /// A sequence that is preempted has its prompt scored again.
    ScoredAgain,
    /// A source is known by its hash, of one bit, and its tokens are not compared.
    SourceByHashAlone,
    /// The executor is not told that a sequence has ended.
    ReleaseForgotten,
    /// A prefix is found whatever the text is about.
    PrefixOfAnotherSource,
    /// The checkpoints of all tenants are everybody's.
    CheckpointOfAnotherTenant,
    /// A checkpoint is kept of a state that has passed one token more than is said of it.
    CheckpointLate,
    /// The rows that a draft model keeps of a tree stay where the tree had them.
    DraftRowsNotMoved,
    /// Drafters are told the hidden states of as many first nodes of a tree as were accepted, whichever these were.
    HiddenRowsOfRefusedNodes,
    /// The mask of a node's parent is that of the node.
    MaskOfParent,
    /// A grammar stays where the last node that was asked for was.
    GrammarNotTakenBack,
    /// Tokens that only spell what has to come next are written as if nothing else could.
    ForcedBytesTaken,
    /// Behind a forced token noise is that of the place before.
    NoiseShifted,
    /// A grammar may end one token before it may.
    EndTooEarly,
    /// Where a head's rows need several passes, each is given the hidden rows of the first.
    HiddenRowsOfFirstPart,
}

#[cfg(feature = "faults")]
thread_local! {
    static FAULT: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

/// From now on engines make this mistake on this thread, until another is asked for.
#[cfg(feature = "faults")]
pub fn make(fault: Fault) {
    FAULT.set(fault);
}

/// Whether this mistake is to be made.
#[cfg(feature = "faults")]
pub(crate) fn is_made(fault: Fault) -> bool {
    FAULT.get() == fault
}

/// No mistake is to be made.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) const fn is_made(_: Fault) -> bool {
    false
}
