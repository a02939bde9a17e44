//! Fault injection in the routing of rows to experts, with which tests show that they detect such bugs.
//!
//! Each fault is a bug that a faster way of gathering rows might have: the result of a row then depends on the other
//! rows of the pass. A fault affects the networks that run on the thread that set it ([`make`]), in passes of several
//! rows; a row alone is computed correctly. The faults exist only with the feature `faults`, which only tests turn on;
//! without it [`apply_fault`] does nothing, and no fault is compiled into a program.
//!
//! The engine injects faults in the bookkeeping of pages (`engine/src/faults.rs`). A sum in the order of the experts'
//! numbers is not among the faults: it would be another definition, but would depend on the row alone.

/// A fault in the routing of the rows of a pass.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// A row adds the outputs of its experts in the order in which these were first chosen in the pass, by any row.
    SumByArrival,
    /// A row goes through the experts of the next row, with its own weights.
    ExpertsOfNeighbour,
    /// A row goes through its own experts, with the weights of the next row.
    WeightsOfNeighbour,
}

#[cfg(feature = "faults")]
thread_local! {
    static FAULT: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

/// Sets the fault of networks that run on this thread.
#[cfg(feature = "faults")]
pub fn make(fault: Fault) {
    FAULT.set(fault);
}

/// Applies the thread's fault: `experts` and `weights` are the choices of all rows of the pass, `chosen` each.
#[cfg(feature = "faults")]
pub(crate) fn apply_fault(chosen: usize, experts: &mut [u32], weights: &mut [f32]) {
    // A pass may have no rows.
    let one = chosen.min(experts.len());
    match FAULT.get() {
        Fault::None => {}
        Fault::SumByArrival => {
            let all = experts.to_vec();
            let arrival = |expert: &u32| all.iter().position(|other| other == expert);
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

/// Does nothing: faults are not compiled in.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn apply_fault(_chosen: usize, _experts: &mut [u32], _weights: &mut [f32]) {}
