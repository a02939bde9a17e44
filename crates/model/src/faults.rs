//! Mistakes made on purpose in how rows are taken to experts, so that tests can show that they would be seen.
//!
//! Each is one that a faster way of gathering rows invites: a row's result then goes by who else is in the pass. A
//! mistake is made by the thread that asked for it ([`make`]), in passes of several rows; a row alone is as it should
//! be. This module exists with the feature `faults` alone, which only tests turn on; without it [`misplace`] does
//! nothing, and nothing of the mistakes is compiled into a program.
//!
//! Left out: the bookkeeping of pages, whose mistakes the engine makes (`engine/src/faults.rs`). And the sum of a row
//! by the numbers of its experts, which would be another definition and no mistake: it goes by the row alone, so no
//! company changes it.

/// A mistake in what the rows of a pass get from experts.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// None: the healthy network.
    #[default]
    None,
    /// A row adds up what its experts say in the order in which the pass met these, whoever chose them first.
    SumByArrival,
    /// A row goes through the experts that its neighbour chose, with weights of its own.
    ExpertsOfNeighbour,
    /// A row's experts count what those of its neighbour do.
    WeightsOfNeighbour,
}

#[cfg(feature = "faults")]
thread_local! {
    static FAULT: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

/// From now on networks that run on this thread make this mistake, until another is asked for.
#[cfg(feature = "faults")]
pub fn make(fault: Fault) {
    FAULT.set(fault);
}

/// Makes the mistake that was asked for: `experts` and `weights` are the choices of all rows of the pass, so many each.
#[cfg(feature = "faults")]
pub(crate) fn misplace(chosen: usize, experts: &mut [u32], weights: &mut [f32]) {
    // Of a pass without rows there is nothing.
    let one = chosen.min(experts.len());
    match FAULT.get() {
        Fault::None => {}
        Fault::SumByArrival => {
            let met = experts.to_vec();
            let arrival = |expert: &u32| met.iter().position(|other| other == expert);
            for (experts, weights) in experts.chunks_exact_mut(chosen).zip(weights.chunks_exact_mut(chosen)) {
                let mut own: Vec<(u32, f32)> = experts.iter().copied().zip(weights.iter().copied()).collect();
                own.sort_by_key(|(expert, _)| arrival(expert));
                for ((expert, weight), own) in experts.iter_mut().zip(weights).zip(own) {
                    (*expert, *weight) = own;
                }
            }
        }
        Fault::ExpertsOfNeighbour => experts.rotate_left(one),
        Fault::WeightsOfNeighbour => weights.rotate_left(one),
    }
}

/// No mistake is to be made.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn misplace(_chosen: usize, _experts: &mut [u32], _weights: &mut [f32]) {}
