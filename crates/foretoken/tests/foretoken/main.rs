//! Tests of the library as front ends use it: an engine on a thread, concurrent users, runs repeated from records,
//! models that are loaded once.
//!
//! Tests of the built-in demo models need the feature `demo`; others open these models as folders.

mod backends;
mod beams;
mod conversations;
mod file_probe;
mod files;
mod generators;
mod guided;
mod hidden;
mod prompt_cache;
mod threads;
mod users;
mod vocabularies;
