//! Errors of checkpoints beyond their file format, and of executors with an inconsistent capacity, each shown in one
//! line.

use std::fmt;

use foretoken_weights::WeightsError;
use foretoken_weights::line::{OneLine, escaped, one_line};

/// Why a model cannot be loaded.
#[derive(Debug)]
pub enum ModelError {
    /// A file could not be read, is malformed, or lacks a tensor.
    Weights(WeightsError),
    /// A file that a model directory must have could not be read.
    Io {
        /// The file.
        file: String,
        /// The message of the operating system.
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
    /// A tensor would not be used, although without it the network would be a different one.
    Unused {
        /// The file.
        file: String,
        /// The first such tensor.
        tensor: String,
        /// Number of such tensors.
        count: usize,
        /// The family that the configuration names.
        family: &'static str,
    },
    /// A setting of the caller does not fit the model.
    Setting {
        /// The model and, if the setting does not fit only a part of it, that part.
        place: String,
        /// The setting.
        setting: Setting,
        /// The value of the setting.
        value: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The requested cache is larger than the memory.
    Memory {
        /// The model.
        file: String,
        /// Number of positions that were requested.
        positions: usize,
        /// Number of bytes of each position.
        position_bytes: usize,
    },
    /// The capacity of an executor is inconsistent.
    Capacity {
        /// The model, and the backend of the executor.
        place: String,
        /// What is wrong.
        problem: CapacityProblem,
    },
    /// The ranks cannot run the model.
    Ranks {
        /// The model.
        place: String,
        /// Which rank, and why.
        message: String,
    },
    /// There is no memory for a packed matrix.
    WeightsMemory {
        /// The model and the matrix.
        place: String,
        /// Number of its rows.
        outputs: usize,
        /// Number of its columns.
        inputs: usize,
    },
    /// The system has too little memory for a layer that is read from a file.
    LayersMemory {
        /// The file of packed layers.
        place: String,
        /// The layer's number of bytes.
        bytes: usize,
    },
}

/// A setting of [`Options`](crate::Options) that may not fit a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `key_type`.
    KeyType,
    /// `value_type`.
    ValueType,
    /// `weight_type`.
    WeightType,
    /// `expert_bytes`.
    ExpertBytes,
    /// `layer_bytes`.
    LayerBytes,
}

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Self::KeyType => "key_type",
            Self::ValueType => "value_type",
            Self::WeightType => "weight_type",
            Self::ExpertBytes => "expert_bytes",
            Self::LayerBytes => "layer_bytes",
        }
    }
}

impl ModelError {
    fn message(&self) -> String {
        match self {
            Self::Weights(error) => error.to_string(),
            Self::Io { file, message } => format!("{}: cannot be read: {}", OneLine(file), OneLine(message)),
            Self::Config { file, field, expected, found } => {
                // `expected` may be a long list and is our own text, of which at most a word comes from a file.
                format!(
                    "{}: {}: expected {}, found {}",
                    OneLine(file),
                    OneLine(field),
                    escaped(expected),
                    OneLine(found)
                )
            }
            Self::Shape { file, tensor, expected, found } => {
                let (file, tensor) = (OneLine(file), OneLine(tensor));
                format!("{file}: tensor {tensor}: shape: expected {expected:?}, found {found:?}")
            }
            Self::Unused { file, tensor, count, family } => {
                let found = if *count == 1 { "it".to_string() } else { format!("it and {} like it", count - 1) };
                let (file, tensor) = (OneLine(file), OneLine(tensor));
                format!(
                    "{file}: tensor {tensor}: expected none of this name in a {family} network as the configuration \
                     says it, found {found}"
                )
            }
            Self::Setting { place, setting, value, expected, found } => {
                let (place, expected, found) = (OneLine(place), escaped(expected), OneLine(found));
                format!("{place}: {} {}: expected {expected}, found {found}", setting.name(), OneLine(value))
            }
            Self::Memory { file, positions, position_bytes } => {
                let file = OneLine(file);
                format!(
                    "{file}: cache: expected memory for {positions} positions of {position_bytes} bytes each, \
                     found less"
                )
            }
            Self::Capacity { place, problem } => format!("{}: capacity: {problem}", OneLine(place)),
            Self::Ranks { place, message } => format!("{}: {}", OneLine(place), escaped(message)),
            Self::WeightsMemory { place, outputs, inputs } => {
                format!("{}: expected memory for {outputs} x {inputs} weights, found less", OneLine(place))
            }
            Self::LayersMemory { place, bytes } => {
                format!("{}: expected memory for a layer of {bytes} bytes, found less", OneLine(place))
            }
        }
    }

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
            found: one_line(&found.to_string(), FOUND_MAX),
        }
    }
}

/// Maximum number of characters of a found value in a message, since a value in a file may have any length.
const FOUND_MAX: usize = 120;

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl std::error::Error for ModelError {}

impl From<WeightsError> for ModelError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error)
    }
}

/// An inconsistent field of a [`Capacity`](crate::Capacity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityProblem {
    /// The field, with its cache group if it has one.
    pub field: String,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl CapacityProblem {
    pub(crate) fn new(field: &str, expected: &str, found: String) -> Option<Self> {
        Some(Self { field: field.to_string(), expected: expected.to_string(), found })
    }
}

impl std::error::Error for CapacityProblem {}

impl fmt::Display for CapacityProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_files_are_shown_on_one_line() {
        let error = ModelError::config("a\nb", "c\u{202e}", "d\te", "f\r\n".repeat(100));
        let found = "f\\r\\n".repeat(24) + "...";
        assert_eq!(error.to_string(), format!("a\\nb: c\\u{{202e}}: expected d\\te, found {found}"));
        let error = ModelError::Shape { file: "a".into(), tensor: "b\x1b".into(), expected: vec![1], found: vec![] };
        assert_eq!(error.to_string(), "a: tensor b\\u{1b}: shape: expected [1], found []");
    }
}
