//! What must hold for any bytes whatever: reading them does not panic, a view never leaves the file, and an error is
//! one line that names the file. The fuzz targets call the same two functions.

use std::ops::Range;

use foretoken_weights::{Bytes, Dtype, Weights, WeightsError, gguf, safetensors};

const NAME: &str = "probe.bin";

/// Reads `data` as safetensors. True if it was accepted.
pub fn safetensors(data: &[u8]) -> bool {
    let bytes = Bytes::from_vec(data.to_vec());
    match safetensors::parse(NAME, bytes.clone()) {
        Ok(weights) => check(&weights, bytes.as_ptr_range()),
        Err(error) => refuse(&error),
    }
}

/// Reads `data` as GGUF. True if it was accepted.
pub fn gguf(data: &[u8]) -> bool {
    let bytes = Bytes::from_vec(data.to_vec());
    let file = match gguf::parse(NAME, bytes.clone()) {
        Ok(file) => file,
        Err(error) => return refuse(&error),
    };
    assert!(file.version == 2 || file.version == 3, "version {}", file.version);
    let metadata = &file.metadata;
    for (key, _) in metadata.iter() {
        // Whatever the value is, at least one of these is of the wrong type.
        let errors = [metadata.u32(key).err(), metadata.str(key).err(), metadata.strings(key).err()];
        assert!(errors.iter().flatten().map(refuse).count() >= 2, "key `{key}` has several types");
        let _ = (metadata.bool(key), metadata.f32(key), metadata.usize(key));
        let _ = (metadata.f32s(key), metadata.i32s(key), metadata.usizes(key));
    }
    check(&file.weights, bytes.as_ptr_range())
}

fn check(weights: &Weights, file: Range<*const u8>) -> bool {
    let mut views = Vec::new();
    for tensor in weights.iter() {
        let view = tensor.bytes.as_ptr_range();
        assert!(file.start <= view.start && view.end <= file.end, "`{}` leaves the file", tensor.name);
        assert_eq!(tensor.dtype.size_of(&tensor.shape), Some(tensor.bytes.len()), "size of `{}`", tensor.name);
        match weights.require(&tensor.name) {
            Ok(found) => assert_eq!(found.bytes.as_ptr_range(), view),
            Err(error) => {
                assert!(matches!(tensor.dtype, Dtype::Other(_)), "{error}");
                refuse(&error);
            }
        }
        if !tensor.bytes.is_empty() {
            views.push(view);
        }
    }
    views.sort_by_key(|view| view.start);
    assert!(views.windows(2).all(|pair| pair[0].end <= pair[1].start), "tensors overlap");
    true
}

fn refuse(error: &WeightsError) -> bool {
    let message = error.to_string();
    assert!(message.starts_with(NAME), "does not name the file: {message}");
    assert!(!message.contains(char::is_control), "not one line: {message:?}");
    assert!(message.len() < 8192, "as long as an essay: {} bytes", message.len());
    false
}
