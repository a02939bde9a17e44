//! A model on disk or embedded in the program: its configuration and its tensors, in Hugging Face's format or GGUF.
//!
//! It is a Hugging Face directory (`config.json` and safetensors, in one file or in shards), a GGUF file, or several
//! GGUF files that are one model. Families are not known here: fields and tensors are read, with errors that name them.

mod sample;

use std::path::Path;

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};
use foretoken_weights::{Bytes, Tensor, Weights, gguf, safetensors};
use serde_json::Value;

use crate::error::ModelError;
use crate::quantized::weights_per_element;

pub use sample::Sample;

/// The configuration and the tensors of one model.
pub struct Checkpoint {
    /// The directory or file, for messages.
    pub name: String,
    /// The configuration, in the form of its format.
    pub config: Config,
    /// The tensors.
    pub weights: Weights,
}

/// The configuration of a checkpoint.
pub enum Config {
    /// `config.json` of a Hugging Face directory.
    Json(JsonConfig),
    /// The metadata of a GGUF file.
    Gguf(gguf::Metadata),
}

impl Checkpoint {
    /// Opens a directory or a `.gguf` file; for a model in several GGUF files, any of them.
    ///
    /// # Errors
    /// [`ModelError`] naming the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let name = path.display().to_string();
        if path.is_dir() {
            let file = path.join("config.json");
            let bytes = whole::read(&file, SETTINGS_BYTES_MAX)
                .map_err(|error| ModelError::Io { file: file.display().to_string(), message: error.to_string() })?;
            let config = Config::Json(JsonConfig::parse(&file.display().to_string(), &bytes)?);
            return Ok(Self { name, config, weights: safetensors::open_dir(path)? });
        }
        let file = gguf::open(path)?;
        Ok(Self { name, config: Config::Gguf(file.metadata), weights: file.weights })
    }

    /// Makes a checkpoint of files that are embedded in the program: the text of `config.json` and a safetensors file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_parts(name: &str, config: &[u8], weights: Bytes) -> Result<Self, ModelError> {
        Ok(Self {
            name: name.to_string(),
            config: Config::Json(JsonConfig::parse(&format!("{name}/config.json"), config)?),
            weights: safetensors::parse(&format!("{name}/model.safetensors"), weights)?,
        })
    }

    /// Number of elements of all tensors; for quantized matrices the number of weights.
    pub fn parameters(&self) -> usize {
        self.weights.iter().map(parameters).sum()
    }

    /// [`Checkpoint::parameters`] of one tensor; 0 if there is none with this name.
    pub fn parameters_of(&self, tensor: &str) -> usize {
        self.weights.get(tensor).map_or(0, parameters)
    }
}

fn parameters(tensor: &Tensor) -> usize {
    weights_per_element(&tensor.name) * tensor.shape.iter().product::<usize>()
}

/// A JSON object whose getters return errors with field, expected and found value.
pub struct JsonConfig {
    file: String,
    /// Names of the enclosing objects, each followed by a dot, for messages.
    path: String,
    value: Value,
}

impl JsonConfig {
    fn parse(file: &str, bytes: &[u8]) -> Result<Self, ModelError> {
        match serde_json::from_slice(bytes) {
            Ok(value @ Value::Object(_)) => Ok(Self { file: file.to_string(), path: String::new(), value }),
            Ok(other) => Err(ModelError::config(file, "document", "a JSON object", kind(&other))),
            Err(error) => Err(ModelError::config(file, "document", "JSON", error)),
        }
    }

    /// The file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The object as text, on one line.
    pub fn text(&self) -> String {
        self.value.to_string()
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.value.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field is present and not null.
    pub fn has(&self, field: &str) -> bool {
        self.get(field).is_some()
    }

    /// Whether the field is present, even if it is null.
    pub fn has_key(&self, field: &str) -> bool {
        self.value.get(field).is_some()
    }

    fn wrong(&self, field: &str, expected: &str) -> ModelError {
        let found = self.get(field).map_or("nothing".to_string(), kind);
        ModelError::config(&self.file, format!("{}{field}", self.path), expected, found)
    }

    /// A whole number, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_usize(&self, field: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong(field, "a whole number"))
    }

    /// A whole number.
    ///
    /// # Errors
    /// The field is missing or something else.
    pub fn usize(&self, field: &str) -> Result<usize, ModelError> {
        self.optional_usize(field)?.ok_or_else(|| self.wrong(field, "a whole number"))
    }

    /// A finite number, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_f32(&self, field: &str) -> Result<Option<f32>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(field, "a finite number"))
    }

    /// A finite number.
    ///
    /// # Errors
    /// The field is missing or something else.
    pub fn f32(&self, field: &str) -> Result<f32, ModelError> {
        self.optional_f32(field)?.ok_or_else(|| self.wrong(field, "a number"))
    }

    /// True or false, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_bool(&self, field: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(field, "true or false"))
    }

    /// A string, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_str(&self, field: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, "a string"))
    }

    /// An array of elements that `convert` accepts, if the field is there.
    fn optional_array<T>(
        &self,
        field: &str,
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let converted = value.as_array().and_then(|items| items.iter().map(convert).collect());
        converted.map(Some).ok_or_else(|| self.wrong(field, expected))
    }

    /// An array of strings, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_strings(&self, field: &str) -> Result<Option<Vec<String>>, ModelError> {
        self.optional_array(field, "an array of strings", |value| value.as_str().map(str::to_string))
    }

    /// An array of whole numbers, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_usizes(&self, field: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.optional_array(field, "an array of whole numbers", number)
    }

    /// An array of finite numbers.
    ///
    /// # Errors
    /// The field is missing or something else.
    pub fn f32s(&self, field: &str) -> Result<Vec<f32>, ModelError> {
        const EXPECTED: &str = "an array of finite numbers";
        let number = |value: &Value| value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        self.optional_array(field, EXPECTED, number)?.ok_or_else(|| self.wrong(field, EXPECTED))
    }

    /// A nested object, if the field is there.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_object(&self, field: &str) -> Result<Option<JsonConfig>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        if !value.is_object() {
            return Err(self.wrong(field, "an object"));
        }
        let path = format!("{}{field}.", self.path);
        Ok(Some(Self { file: self.file.clone(), path, value: value.clone() }))
    }

    /// The objects in a nested object, whatever their names; none if the field is missing.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn optional_objects(&self, field: &str) -> Result<Vec<JsonConfig>, ModelError> {
        let Some(all) = self.optional_object(field)? else { return Ok(Vec::new()) };
        let Value::Object(fields) = &all.value else { return Ok(Vec::new()) };
        let one = |name: &String| all.optional_object(name)?.ok_or_else(|| all.wrong(name, "an object"));
        fields.keys().map(one).collect()
    }

    /// The names of all fields.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.value.as_object().into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// An error about a field whose value has the right type but is not accepted.
    pub fn refuse(&self, field: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> ModelError {
        ModelError::config(&self.file, format!("{}{field}", self.path), expected, found)
    }
}

/// A value as error messages show it: scalars as they are, others by their type.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_string(),
    }
}
