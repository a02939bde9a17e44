//! Fault injection: mistakes made on purpose, so that tests can show that the simulator detects them.
//!
//! A fault is made on the thread that asked for it ([`make`]), at the one place in the engine that asks [`is_made`].
//! This module is public only with the feature `faults`, which only the tests of `testkit` turn on; without the feature
//! [`is_made`] is the constant `false`, and no fault is compiled into a program. Faults of executors are made by the
//! toys (`foretoken_testkit::toy`).

/// A fault that the engine can make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// A page that several sequences hold is freed as soon as one of them releases it.
    PageGivenBackEarly,
    /// A cached prefix is found by a hash of three bits, and its tokens are not compared.
    PrefixByHashAlone,
    /// Cached prefixes are shared between all tenants.
    PrefixOfAnotherTenant,
    /// In a cache group with a sliding window, a prefix is adopted even if the first page of its last window is gone.
    WindowNotHeld,
    /// A page of which only the first rows match a sequence is shared like one that matches in full, and written to.
    SharedPageWritten,
    /// If a prefix ends inside a page, the sequence's own page does not get the prefix's rows.
    RowsNotCopied,
    /// A sequence that was preempted resumes one token later than its cached rows end.
    ResumedLate,
    /// A sequence that is preempted keeps its draft for the pass in which it comes back.
    DraftKept,
    /// A sequence that is preempted leaves the row after its last token, which a rejected draft wrote, in the cache.
    RejectedRowKept,
    /// Cached rows, which have no logits, are adopted for a prompt that is to be scored.
    UnscoredAdopted,
    /// The prompt of a sequence that is preempted is scored again.
    ScoredAgain,
    /// A source is found by a hash of one bit, and its tokens are not compared.
    SourceByHashAlone,
    /// The executor is not told that a sequence has ended.
    ReleaseForgotten,
    /// A cached prefix is found even if it was computed with another source.
    PrefixOfAnotherSource,
    /// Checkpoints are shared between all tenants.
    CheckpointOfAnotherTenant,
    /// A checkpoint is kept of a state that has read one token more than is recorded for it.
    CheckpointLate,
    /// The accepted rows of a tree are not compacted in a draft model's cache.
    DraftRowsNotMoved,
    /// Drafters get the hidden states of the first nodes of a tree, as many as were accepted, instead of the accepted
    /// nodes' own.
    HiddenRowsOfRejectedNodes,
    /// A node is masked by the mask of its parent.
    MaskOfParent,
    /// A grammar is not rolled back from the last node that it was asked for.
    GrammarNotTakenBack,
    /// Tokens that only spell the forced bytes are written as if they were the only possible ones.
    ForcedBytesTaken,
    /// After a forced token the noise is that of the previous position.
    NoiseShifted,
    /// A grammar may end one token too early.
    EndTooEarly,
    /// The rows of a beam search stay at their places when others before them are removed.
    BeamRowsNotMoved,
    /// A beam search goes on without a pass although one of its hypotheses was not drafted, and drops that one.
    BeamMissing,
    /// If a head's rows need several passes, each pass gets the hidden states of the first.
    HiddenRowsOfFirstPart,
}

#[cfg(feature = "faults")]
thread_local! {
    static FAULT: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

/// Makes engines on this thread make this fault, until another one is asked for.
#[cfg(feature = "faults")]
pub fn make(fault: Fault) {
    FAULT.set(fault);
}

/// Whether this fault is to be made.
#[cfg(feature = "faults")]
pub(crate) fn is_made(fault: Fault) -> bool {
    FAULT.get() == fault
}

/// No fault is to be made.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) const fn is_made(_: Fault) -> bool {
    false
}
