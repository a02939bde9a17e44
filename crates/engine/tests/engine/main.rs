//! The engine against the oracle, by enumeration, and in awkward company.

mod alpha;
mod auto;
mod broken;
mod budgets;
mod canaries;
mod checkpoints;
mod company;
mod conformance;
mod crowded;
mod failing;
mod families;
mod flat;
mod hidden;
mod late;
mod numbers;
mod pieces;
mod prediction;
mod probes;
mod refused;
mod requests;
mod saved;
mod scores;
mod translated;
mod windows;
mod writing;
