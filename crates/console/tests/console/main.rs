//! Untrusted files of prompts and of records.

mod mutations;
mod probe;
