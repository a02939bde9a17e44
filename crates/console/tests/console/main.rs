//! Files of prompts and of records as strangers write them.

mod mutations;
mod probe;
