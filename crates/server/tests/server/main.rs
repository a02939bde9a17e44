//! The server as its clients see it: over sockets, with the demo pair.
//!
//! What is asked for is what comes: the same text however it is asked (`texts`), each field (`fields`, `chats`,
//! `speculation`, `log_probabilities`), each refusal by name (`mutations`), and so by Ollama's API (`ollama`). Limits,
//! guards and ends are those of `limits`, `guards` and `ends`; counts are read as Prometheus reads them (`metrics`,
//! `prometheus`). Whatever comes, the engine is empty and intact afterwards (`properties`, and every `House` that is
//! ended). Load is in a program of its own (`../load.rs`).

mod bodies;
mod chats;
mod client;
mod ends;
mod fields;
mod guards;
mod guided;
mod house;
mod infill;
mod limits;
mod llama_cpp;
mod log;
mod log_probabilities;
mod messages;
mod metrics;
mod mutations;
mod ollama;
mod probe;
mod prometheus;
mod properties;
mod responses;
mod speculation;
mod texts;
mod thinking;
mod tools;
