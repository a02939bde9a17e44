//! The metadata of a GGUF file: keys and values, with typed getters.
//!
//! A getter returns the type it is named for, or an error with the file, the key, the expected and the found type.
//! Writers do not agree on the width of an integer, so integer getters accept any width that holds the value. Nothing
//! else is converted, except that a 64-bit float may be read as a 32-bit one. Each getter has an `optional_` variant
//! for keys that a file may lack: an absent key is `None`, and a value of the wrong type is still an error.

use std::collections::BTreeMap;

use super::{Array, Value};
use crate::WeightsError;

/// The metadata of a GGUF file.
#[derive(Clone, Debug)]
pub struct Metadata {
    source: String,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Makes metadata of these entries; `source` is a file name for error messages. If a key occurs twice, its last
    /// value counts.
    pub fn new(source: &str, values: impl IntoIterator<Item = (String, Value)>) -> Metadata {
        Metadata { source: source.to_string(), values: values.into_iter().collect() }
    }

    /// Adds an entry, or returns it if its key is already there.
    pub(super) fn insert(&mut self, key: String, value: Value) -> Option<(String, Value)> {
        if self.values.contains_key(&key) {
            return Some((key, value));
        }
        self.values.insert(key, value);
        None
    }

    /// Sets an entry, replacing any entry with the same key.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.values.insert(key.into(), value.into());
    }

    /// Removes an entry, if there is one.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key)
    }

    /// The file, for error messages.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All entries, in order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Converts the value of `key`, if there is one.
    fn optional<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.error(key, expected, value.describe())),
        }
    }

    fn required<T>(&self, key: &str, expected: &'static str, optional: Option<T>) -> Result<T, WeightsError> {
        optional.ok_or_else(|| self.error(key, expected, "no such key".to_string()))
    }

    fn error(&self, key: &str, expected: &'static str, found: String) -> WeightsError {
        WeightsError::Key { file: self.source.clone(), key: key.to_string(), expected, found }
    }
}

/// Two getters per type: one for keys that must be there, one for keys that may.
macro_rules! getters {
    ($($(#[$doc:meta])* $required:ident, $optional:ident: $type:ty, $expected:literal, $convert:expr;)*) => {
        impl Metadata {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`WeightsError::Key`] if the key is absent or its value is of another type.
                pub fn $required(&self, key: &str) -> Result<$type, WeightsError> {
                    self.required(key, $expected, self.$optional(key)?)
                }

                $(#[$doc])*
                /// `None` if the key is absent.
                ///
                /// # Errors
                /// [`WeightsError::Key`] if its value is of another type.
                pub fn $optional(&self, key: &str) -> Result<Option<$type>, WeightsError> {
                    self.optional(key, $expected, $convert)
                }
            )*
        }
    };
}

getters! {
    /// An integer of any width that fits in 32 bits unsigned.
    u32, optional_u32: u32, "u32", |value| value.as_integer()?.try_into().ok();
    /// An integer of any width that is a length on this machine.
    usize, optional_usize: usize, "an unsigned integer", |value| value.as_integer()?.try_into().ok();
    /// A float; one of 64 bits is rounded.
    f32, optional_f32: f32, "f32", |value| match *value {
        Value::F32(value) => Some(value),
        Value::F64(value) => Some(value as f32),
        _ => None,
    };
    /// A boolean.
    bool, optional_bool: bool, "bool", |value| match *value {
        Value::Bool(value) => Some(value),
        _ => None,
    };
    /// A string.
    str, optional_str: &str, "string", |value| match value {
        Value::String(value) => Some(value.as_str()),
        _ => None,
    };
    /// An array of strings.
    strings, optional_strings: &[String], "array of string", |value| match value {
        Value::Array(Array::String(values)) => Some(values.as_slice()),
        _ => None,
    };
    /// An array of 32-bit floats.
    f32s, optional_f32s: &[f32], "array of f32", |value| match value {
        Value::Array(Array::F32(values)) => Some(values.as_slice()),
        _ => None,
    };
    /// An array of 64-bit floats.
    f64s, optional_f64s: &[f64], "array of f64", |value| match value {
        Value::Array(Array::F64(values)) => Some(values.as_slice()),
        _ => None,
    };
    /// An array of bytes, which some files write as signed ones.
    bytes, optional_bytes: Vec<u8>, "array of u8", |value| match value {
        Value::Array(Array::U8(values)) => Some(values.clone()),
        Value::Array(Array::I8(values)) => Some(values.iter().map(|value| value.cast_unsigned()).collect()),
        _ => None,
    };
    /// An array of integers of any width that each fit in 32 bits signed.
    i32s, optional_i32s: Vec<i32>, "array of i32", |value| match value {
        Value::Array(values) => values.to_integers(),
        _ => None,
    };
    /// An array of integers of any width that are each a length on this machine.
    usizes, optional_usizes: Vec<usize>, "array of unsigned integers", |value| match value {
        Value::Array(values) => values.to_integers(),
        _ => None,
    };
}
