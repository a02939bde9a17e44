//! What can be wrong with a checkpoint beyond its file format, said in one line.

use std::fmt;

use foretoken_weights::WeightsError;

/// Why a model cannot be loaded.
#[derive(Debug)]
pub enum ModelError {
    /// A file could not be read, is malformed, or lacks a tensor.
    Weights(WeightsError),
    /// A file that a model directory must have could not be read.
    Io {
        /// The file.
        file: String,
        /// What the operating system says.
        message: String,
    },
    /// A field of the configuration is missing, has the wrong type or an impossible value.
    Config {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A tensor contradicts the configuration.
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// The cache that was asked for is larger than the memory.
    Memory {
        /// The model.
        file: String,
        /// Positions that were asked for.
        positions: usize,
        /// What each of them takes.
        position_bytes: usize,
    },
}

impl ModelError {
    pub(crate) fn config(
        file: &str,
        field: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self::Config {
            file: file.to_string(),
            field: field.into(),
            expected: expected.to_string(),
            found: found.to_string().chars().take(FOUND_MAX).collect(),
        }
    }
}

/// Characters of a found value that a message shows; a file may hold any number.
const FOUND_MAX: usize = 120;

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weights(error) => error.fmt(f),
            Self::Io { file, message } => write!(f, "{file}: cannot be read: {message}"),
            Self::Config { file, field, expected, found } => {
                write!(f, "{file}: {field}: expected {expected}, found {found}")
            }
            Self::Shape { file, tensor, expected, found } => {
                write!(f, "{file}: tensor {tensor}: shape: expected {expected:?}, found {found:?}")
            }
            Self::Memory { file, positions, position_bytes } => {
                write!(
                    f,
                    "{file}: cache: expected memory for {positions} positions of {position_bytes} bytes each, found less"
                )
            }
        }
    }
}

impl std::error::Error for ModelError {}

impl From<WeightsError> for ModelError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error)
    }
}
