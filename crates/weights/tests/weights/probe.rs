//! Checks of the properties that hold for any bytes: reading them does not panic, a view never reaches beyond the file,
//! and an error is one line that names the file. A safetensors file is read as the `safetensors` crate reads it. The
//! fuzz targets call the same two functions.

use std::ops::Range;

use foretoken_weights::{Bytes, Dtype, Weights, WeightsError, gguf, safetensors};

const NAME: &str = "probe.bin";

/// Reads `data` as safetensors. Returns whether it was accepted. The `safetensors` crate must read the same; if only
/// that crate accepts the file, [`STRICTER`] must list the reason.
pub fn safetensors(data: &[u8]) -> bool {
    let bytes = Bytes::from_vec(data.to_vec());
    let theirs = ::safetensors::SafeTensors::deserialize(data);
    match safetensors::parse(NAME, bytes.clone()) {
        Ok(weights) => {
            let theirs = theirs.unwrap_or_else(|error| panic!("refused by the crate alone: {error}"));
            assert_eq!(weights.len(), theirs.len());
            for tensor in weights.iter() {
                let their = theirs.tensor(&tensor.name).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(
                    (tensor.dtype.name(), &tensor.shape[..]),
                    (their.dtype().to_string().as_str(), their.shape())
                );
                assert_eq!(tensor.bytes[..], *their.data());
            }
            check(&weights, bytes.as_ptr_range())
        }
        Err(error) => {
            let message = error.to_string();
            let is_listed = STRICTER.iter().any(|reason| message.contains(reason));
            assert!(is_listed || theirs.is_err(), "accepted by the crate alone: {message}");
            check_error(&error)
        }
    }
}

/// The reasons for which a file is refused that the `safetensors` crate accepts: blanks before the header, a name that
/// occurs twice (the crate drops one of the two), rows that end within a byte, and JSON that only the crate's library
/// accepts as a tensor.
const STRICTER: [&str; 5] =
    ["expected `{`", "twice", "rows of a multiple of", "invalid type: sequence", "invalid type: map"];

/// Reads `data` as GGUF. Returns whether it was accepted.
pub fn gguf(data: &[u8]) -> bool {
    let bytes = Bytes::from_vec(data.to_vec());
    let file = match gguf::parse(NAME, bytes.clone()) {
        Ok(file) => file,
        Err(error) => return check_error(&error),
    };
    assert!(file.version == 2 || file.version == 3, "version {}", file.version);
    let metadata = &file.metadata;
    for (key, _) in metadata.iter() {
        // Whatever the value is, at least one of these getters finds the wrong type.
        let errors = [metadata.u32(key).err(), metadata.str(key).err(), metadata.strings(key).err()];
        assert!(errors.iter().flatten().map(check_error).count() >= 2, "key `{key}` has several types");
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
                check_error(&error);
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

fn check_error(error: &WeightsError) -> bool {
    let message = error.to_string();
    assert!(message.starts_with(NAME), "does not name the file: {message}");
    assert!(!message.contains(char::is_control), "not one line: {message:?}");
    assert!(message.len() < 8192, "too long: {} bytes", message.len());
    false
}
