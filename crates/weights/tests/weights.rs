//! The integration tests of `foretoken-weights`: round trips, one named test per attack, random mutations, real files.

mod weights {
    mod bytes;
    mod files;
    mod gguf;
    mod gguf_peer;
    mod gguf_write;
    mod gguf_writer;
    mod imatrix;
    mod mutations;
    mod parts;
    mod probe;
    mod safetensors;
    mod seeds;
    mod shards;
}
