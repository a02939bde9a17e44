//! Metadata values: thirteen types, one of them arrays of the others.
//!
//! An array keeps its elements in a `Vec` of their own type, so that a file cannot make its reader hold 32 bytes for
//! each byte it has, and a vocabulary can be borrowed as a slice of strings. Arrays of arrays exist in the format,
//! though not in real files; they are read to a small depth.

use std::fmt::Display;

use super::reader::Reader;
use crate::WeightsError;

/// Maximum depth of nested arrays. ggml itself reads no nested arrays at all.
const DEPTH_MAX: usize = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are the types of the format
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of metadata values, all of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are the types of the format
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The value if it is an integer of any width, without loss.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => Some(value.into()),
            Value::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The type, and the value if it is short, for error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::U8(value) => format!("u8 {value}"),
            Value::I8(value) => format!("i8 {value}"),
            Value::U16(value) => format!("u16 {value}"),
            Value::I16(value) => format!("i16 {value}"),
            Value::U32(value) => format!("u32 {value}"),
            Value::I32(value) => format!("i32 {value}"),
            Value::F32(value) => format!("f32 {value}"),
            Value::Bool(value) => format!("bool {value}"),
            Value::String(value) => format!("string of {} bytes", value.len()),
            Value::Array(array) => format!("array of {} {}", array.len(), array.element()),
            Value::U64(value) => format!("u64 {value}"),
            Value::I64(value) => format!("i64 {value}"),
            Value::F64(value) => format!("f64 {value}"),
        }
    }
}

/// Conversions from the types that writers of metadata use.
macro_rules! values {
    ($($from:ty: $value:ident => $converted:expr;)*) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Value {
                $converted
            }
        })*
    };
}

values! {
    u32: value => Value::U32(value);
    f32: value => Value::F32(value);
    bool: value => Value::Bool(value);
    &str: value => Value::String(value.to_string());
    String: value => Value::String(value);
    Vec<String>: values => Value::Array(Array::String(values));
    Vec<u8>: values => Value::Array(Array::U8(values));
    Vec<f32>: values => Value::Array(Array::F32(values));
    Vec<f64>: values => Value::Array(Array::F64(values));
    Vec<i32>: values => Value::Array(Array::I32(values));
}

/// Evaluates an expression for the `Vec` of an array of any type.
macro_rules! each_kind {
    ($array:expr, $values:ident, $kind:ident => $result:expr) => {
        match $array {
            Array::U8($values) => {
                let $kind = "u8";
                $result
            }
            Array::I8($values) => {
                let $kind = "i8";
                $result
            }
            Array::U16($values) => {
                let $kind = "u16";
                $result
            }
            Array::I16($values) => {
                let $kind = "i16";
                $result
            }
            Array::U32($values) => {
                let $kind = "u32";
                $result
            }
            Array::I32($values) => {
                let $kind = "i32";
                $result
            }
            Array::F32($values) => {
                let $kind = "f32";
                $result
            }
            Array::Bool($values) => {
                let $kind = "bool";
                $result
            }
            Array::String($values) => {
                let $kind = "string";
                $result
            }
            Array::Array($values) => {
                let $kind = "array";
                $result
            }
            Array::U64($values) => {
                let $kind = "u64";
                $result
            }
            Array::I64($values) => {
                let $kind = "i64";
                $result
            }
            Array::F64($values) => {
                let $kind = "f64";
                $result
            }
        }
    };
}

impl Array {
    /// The number of elements.
    pub fn len(&self) -> usize {
        each_kind!(self, values, _kind => values.len())
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the elements' type.
    pub fn element(&self) -> &'static str {
        each_kind!(self, _values, kind => kind)
    }

    /// The elements if they are integers of any width and each fits in a `T`.
    pub fn to_integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        fn all<S: Copy + Into<i128>, T: TryFrom<i128>>(values: &[S]) -> Option<Vec<T>> {
            values.iter().map(|&value| T::try_from(value.into()).ok()).collect()
        }
        match self {
            Array::U8(values) => all(values),
            Array::I8(values) => all(values),
            Array::U16(values) => all(values),
            Array::I16(values) => all(values),
            Array::U32(values) => all(values),
            Array::I32(values) => all(values),
            Array::U64(values) => all(values),
            Array::I64(values) => all(values),
            _ => None,
        }
    }
}

/// Reads the type and the value of `key`, and returns the value.
pub(super) fn read(reader: &mut Reader<'_>, key: &str) -> Result<Value, WeightsError> {
    let what = format!("key `{key}`");
    let kind = reader.u32(&format_args!("type of {what}"))?;
    if kind == ARRAY {
        return Ok(Value::Array(read_array(reader, &what, 1)?));
    }
    // A single value is an array of one element without its header.
    Ok(match read_elements(reader, &what, kind, 1, 0)? {
        Array::U8(values) => Value::U8(values[0]),
        Array::I8(values) => Value::I8(values[0]),
        Array::U16(values) => Value::U16(values[0]),
        Array::I16(values) => Value::I16(values[0]),
        Array::U32(values) => Value::U32(values[0]),
        Array::I32(values) => Value::I32(values[0]),
        Array::F32(values) => Value::F32(values[0]),
        Array::Bool(values) => Value::Bool(values[0]),
        Array::String(mut values) => Value::String(values.remove(0)),
        Array::Array(mut values) => Value::Array(values.remove(0)),
        Array::U64(values) => Value::U64(values[0]),
        Array::I64(values) => Value::I64(values[0]),
        Array::F64(values) => Value::F64(values[0]),
    })
}

/// The type number of an array.
const ARRAY: u32 = 9;

fn read_array(reader: &mut Reader<'_>, what: &dyn Display, depth: usize) -> Result<Array, WeightsError> {
    if depth > DEPTH_MAX {
        return Err(reader.error(what, format_args!("arrays nested {DEPTH_MAX} deep at most"), "deeper ones"));
    }
    let kind = reader.u32(&format_args!("element type of {what}"))?;
    // The minimum number of bytes of an element of this type.
    let element_min = match kind {
        8 => 8,      // an empty string has only its length
        ARRAY => 12, // an empty array has only its type and its length
        _ => 1,      // numbers are checked as a whole when they are taken
    };
    let count = reader.count(element_min, &format_args!("length of {what}"))?;
    read_elements(reader, what, kind, count, depth)
}

/// Reads `count` consecutive elements of one type.
fn read_elements(
    reader: &mut Reader<'_>,
    what: &dyn Display,
    kind: u32,
    count: usize,
    depth: usize,
) -> Result<Array, WeightsError> {
    macro_rules! numbers {
        ($number:ty) => {
            numbers(reader, what, count, <$number>::from_le_bytes)?
        };
    }
    Ok(match kind {
        0 => Array::U8(numbers!(u8)),
        1 => Array::I8(numbers!(i8)),
        2 => Array::U16(numbers!(u16)),
        3 => Array::I16(numbers!(i16)),
        4 => Array::U32(numbers!(u32)),
        5 => Array::I32(numbers!(i32)),
        6 => Array::F32(numbers!(f32)),
        7 => Array::Bool(booleans(reader, what, count)?),
        8 => {
            // Memory is not reserved in advance, since the count may be larger than the number of strings that follow.
            let mut strings = Vec::new();
            for index in 0..count {
                strings.push(reader.string(&format_args!("string {index} of {what}"))?);
            }
            Array::String(strings)
        }
        ARRAY => {
            let mut arrays = Vec::new();
            for _ in 0..count {
                arrays.push(read_array(reader, what, depth + 1)?);
            }
            Array::Array(arrays)
        }
        10 => Array::U64(numbers!(u64)),
        11 => Array::I64(numbers!(i64)),
        12 => Array::F64(numbers!(f64)),
        _ => return Err(reader.error(&format_args!("type of {what}"), "0 to 12", kind)),
    })
}

fn numbers<T, const SIZE: usize>(
    reader: &mut Reader<'_>,
    what: &dyn Display,
    count: usize,
    from_le_bytes: impl Fn([u8; SIZE]) -> T,
) -> Result<Vec<T>, WeightsError> {
    // Saturating is enough: no file has that many bytes, so the reader refuses.
    let bytes = reader.take((count as u64).saturating_mul(SIZE as u64), what)?;
    let (chunks, _) = bytes.as_chunks::<SIZE>();
    Ok(chunks.iter().map(|&chunk| from_le_bytes(chunk)).collect())
}

fn booleans(reader: &mut Reader<'_>, what: &dyn Display, count: usize) -> Result<Vec<bool>, WeightsError> {
    let bytes = reader.take(count as u64, what)?;
    match bytes.iter().find(|&&byte| byte > 1) {
        None => Ok(bytes.iter().map(|&byte| byte == 1).collect()),
        Some(byte) => Err(reader.error(what, "a bool, 0 or 1", byte)),
    }
}
