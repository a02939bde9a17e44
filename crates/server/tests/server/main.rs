//! Tests of the server as its clients see it: over sockets, with the demo pair.
//!
//! A seeded text is the same for every way of requesting it (`determinism`). Each field is tested (`fields`, `chats`,
//! `speculation`, `log_probabilities`), as are errors for mutated bodies (`mutations`) and the other APIs (`ollama`,
//! `messages`, `responses`, `llama_cpp`), and batch files get the same answers (`batch`). Metrics are parsed as
//! Prometheus parses them (`metrics`, `prometheus`). The engine is empty and consistent afterwards (`properties`, and
//! every `TestServer` that is shut down). Tests under load are a program of their own (`../load.rs`).

mod batch;
mod beams;
mod bodies;
mod chats;
mod client;
mod determinism;
mod encoder_decoder;
mod fields;
mod guards;
mod guided;
mod infill;
mod lenience;
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
mod replicas;
mod responses;
mod shutdown;
mod speculation;
mod test_server;
mod thinking;
mod tools;
