//! The library as its doors use it: an engine on a thread, users at a time, runs from their records, models that are
//! loaded once.
//!
//! Those of the demo models need the feature `demo`, except that models are also opened as folders.

mod backends;
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
