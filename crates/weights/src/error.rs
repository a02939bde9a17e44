//! Errors of model files, each with a message of one line.
//!
//! Every message names the file, the tensor or field, what was expected and what was found. Names come from untrusted
//! files, so they are printed escaped and truncated: a hostile name can neither forge a second line of a log nor fill
//! it. Errors have no chain of causes, since the line has everything.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::line::OneLine;

/// An error of a model file. Its message is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused to open, map or write a file.
    Io {
        /// The file.
        file: String,
        /// What was attempted, as a verb.
        action: &'static str,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The file as a whole, or a field of its header, is malformed.
    Format {
        /// The file.
        file: String,
        /// The field, with its position if that helps.
        field: String,
        /// What was expected in the field.
        expected: String,
        /// What was found in the field.
        found: String,
    },
    /// A tensor's entry in the header is malformed.
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The part of the entry that is wrong, such as shape, offset or type.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A tensor that was asked for is not in the file.
    MissingTensor {
        /// The file or, for a model in shards, its index.
        file: String,
        /// The tensor.
        tensor: String,
        /// The number of tensors that there are.
        count: usize,
    },
    /// A tensor that was asked for is of a type that cannot be computed with.
    UnsupportedDtype {
        /// The file or, for a model in shards, its index.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
    },
    /// A directory has tensors only as `pytorch_model.bin`, in Python's pickle format.
    Pickled {
        /// The file that was found.
        file: String,
        /// Its directory, which the message's command converts.
        dir: PathBuf,
    },
    /// A metadata key that was asked for is absent, or its value is of another type.
    Key {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The type that was expected.
        expected: &'static str,
        /// The value that was found, or that there was none.
        found: String,
    },
}

impl WeightsError {
    pub(crate) fn io(path: &Path, action: &'static str, error: std::io::Error) -> WeightsError {
        WeightsError::Io { file: path.display().to_string(), action, error }
    }

    pub(crate) fn format(
        file: &str,
        field: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> WeightsError {
        WeightsError::Format {
            file: file.to_string(),
            field: field.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    pub(crate) fn tensor(
        file: &str,
        tensor: &str,
        field: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> WeightsError {
        WeightsError::Tensor {
            file: file.to_string(),
            tensor: tensor.to_string(),
            field,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

/// The types that can be computed with.
const SUPPORTED: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4";

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightsError::Io { file, action, error } => {
                write!(f, "{}: cannot {action}: {}", OneLine(file), OneLine(&error.to_string()))
            }
            WeightsError::Format { file, field, expected, found } => {
                write!(
                    f,
                    "{}: {}: expected {}, found {}",
                    OneLine(file),
                    OneLine(field),
                    OneLine(expected),
                    OneLine(found)
                )
            }
            WeightsError::Tensor { file, tensor, field, expected, found } => {
                let (expected, found) = (OneLine(expected), OneLine(found));
                write!(
                    f,
                    "{}: tensor `{}`: {field}: expected {expected}, found {found}",
                    OneLine(file),
                    OneLine(tensor)
                )
            }
            WeightsError::MissingTensor { file, tensor, count } => {
                let name = OneLine(tensor);
                write!(f, "{}: expected tensor `{name}`, found {count} tensors without it", OneLine(file))
            }
            WeightsError::UnsupportedDtype { file, tensor, dtype } => {
                let name = OneLine(tensor);
                write!(f, "{}: tensor `{name}`: type: expected {SUPPORTED}, found {dtype}", OneLine(file))
            }
            WeightsError::Pickled { file, dir } => {
                let mut name = dir.file_name().unwrap_or_default().to_os_string();
                name.push("-safetensors");
                let (from, to) = (quoted(dir), quoted(&dir.with_file_name(name)));
                write!(
                    f,
                    "{}: expected model.safetensors beside config.json, found pickled tensors; this converts them: \
                     python3 -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; \
                     M.from_pretrained({from}, dtype='auto').save_pretrained({to}); \
                     T.from_pretrained({from}).save_pretrained({to})\"",
                    OneLine(file)
                )
            }
            WeightsError::Key { file, key, expected, found } => {
                write!(f, "{}: key `{}`: expected {expected}, found {}", OneLine(file), OneLine(key), OneLine(found))
            }
        }
    }
}

impl std::error::Error for WeightsError {}

/// A path as a Python string, inside the double quotes of a shell.
fn quoted(path: &Path) -> String {
    let mut out = String::from("'");
    for c in path.display().to_string().chars() {
        match c {
            // Characters that end a string or have a meaning in a shell become escapes of their numbers.
            '\'' | '"' | '\\' | '$' | '`' | '!' => out.push_str(&format!("\\\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    format!("{}'", OneLine(&out))
}
