//! The size of values: measuring, charging, and conversion to plain data.
//!
//! A value that is in many lists is counted as often as it is reached, since comparing, printing and copying reach it
//! as often.

use minijinja::value::{DynObject, Tuple, Value, ValueKind};
use minijinja::{Error, State};

use super::{FUEL_BYTES, FUEL_VALUES, MAX_DEPTH, Namespace, invalid_operation};

/// The size of a value; everything is counted as often as it is reached.
#[derive(Clone, Copy, Default)]
pub(in crate::chat) struct ValueSize {
    pub values: u64,
    /// Bytes of texts, without overhead.
    pub bytes: u64,
}

impl ValueSize {
    /// The fuel for visiting all of it.
    pub fn fuel(self) -> u64 {
        self.values / FUEL_VALUES + self.bytes / FUEL_BYTES
    }
}

/// Charges work that visits all of these values, and returns their size.
pub(in crate::chat) fn charge(state: &State, values: &[Value]) -> Result<ValueSize, Error> {
    let mut walk = Walk { state, size: ValueSize::default(), charged: ValueSize::default() };
    for value in values {
        walk.charge(value, 0)?;
    }
    walk.charge_visited()?;
    Ok(walk.size)
}

/// Fails if the remaining fuel is not enough for this many bytes. Call it before they are allocated.
pub(in crate::chat) fn ensure_affordable(state: &State, bytes: u64) -> Result<(), Error> {
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    if bytes / FUEL_BYTES < left { Ok(()) } else { state.consume_fuel(u64::MAX) }
}

struct Walk<'state, 'template, 'env> {
    state: &'state State<'template, 'env>,
    size: ValueSize,
    charged: ValueSize,
}

impl Walk<'_, '_, '_> {
    /// Charges what was visited since the last call.
    fn charge_visited(&mut self) -> Result<(), Error> {
        let values = self.size.values - self.charged.values;
        let bytes = self.size.bytes - self.charged.bytes;
        self.charged = self.size;
        self.state.consume_fuel(values / FUEL_VALUES + bytes / FUEL_BYTES)
    }

    fn visit(&mut self, bytes: usize) -> Result<(), Error> {
        self.size.values += 1;
        self.size.bytes += bytes as u64;
        let unpaid = (self.size.values - self.charged.values) + (self.size.bytes - self.charged.bytes);
        if unpaid >= 4096 { self.charge_visited() } else { Ok(()) }
    }

    fn charge(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.visit(value.as_str().map_or(0, str::len))?;
        let Some(object) = value.as_object() else { return Ok(()) };
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        // A namespace's values are counted, since it may be printed. A macro or a loop prints as a name.
        if is_handle(value, object) && object.downcast_ref::<Namespace>().is_none() {
            return Ok(());
        }
        match value.kind() {
            ValueKind::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.charge(&key, depth + 1)?;
                    self.charge(&item, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.charge(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Converts a value to plain data; `None` if it is plain data already.
    fn convert(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        self.visit(0)?;
        // An invalid item carries the error.
        if value.kind() == ValueKind::Invalid {
            return Err(value.try_iter().err().unwrap_or_else(too_deep));
        }
        let Some(object) = value.as_object() else { return Ok(None) };
        if is_handle(value, object) {
            return match depth {
                0 => Ok(None),
                _ => Err(invalid_operation(&format!("expected data in a list or a map, found {}", name_of(object)))),
            };
        }
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        if value.kind() == ValueKind::Map {
            return self.convert_map(object, depth);
        }
        let mut changed: Option<Vec<Value>> = (!is_strict(object)).then(Vec::new);
        for (index, item) in value.try_iter()?.enumerate() {
            let new = self.convert(&item, depth + 1)?;
            if let (Some(_), None) = (&new, &changed) {
                changed = Some(value.try_iter()?.take(index).collect());
            }
            if let Some(changed) = &mut changed {
                changed.push(new.unwrap_or(item));
            }
        }
        let is_tuple = object.downcast_ref::<Tuple>().is_some();
        Ok(changed.map(|items| if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) }))
    }

    fn convert_map(&mut self, object: &DynObject, depth: usize) -> Result<Option<Value>, Error> {
        let mut is_changed = !is_strict(object);
        let mut pairs = Vec::new();
        for (key, item) in object.try_iter_pairs().into_iter().flatten() {
            // A key was read completely to find its place.
            self.visit(key.as_str().map_or(0, str::len))?;
            let new = (self.convert(&key, depth + 1)?, self.convert(&item, depth + 1)?);
            is_changed |= new.0.is_some() || new.1.is_some();
            pairs.push((new.0.unwrap_or(key), new.1.unwrap_or(item)));
        }
        Ok(is_changed.then(|| Value::from_pairs(pairs)))
    }
}

fn too_deep() -> Error {
    invalid_operation(&format!("expected values at most {MAX_DEPTH} levels deep, found deeper ones"))
}

/// Checks a new value and converts it to plain data.
pub(super) fn checked(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_object().is_none() && value.kind() != ValueKind::Invalid {
        return Ok(value.clone());
    }
    let mut walk = Walk { state, size: ValueSize::default(), charged: ValueSize::default() };
    let new = walk.convert(value, 0)?;
    walk.charge_visited()?;
    Ok(new.unwrap_or_else(|| value.clone()))
}

/// Whether an object is a list, a tuple or a map that is not lazy.
fn is_strict(object: &DynObject) -> bool {
    let name = object.type_name();
    object.downcast_ref::<Vec<Value>>().is_some()
        || object.downcast_ref::<Tuple>().is_some()
        || name.contains("indexmap::")
        || name.ends_with("::GroupTuple")
}

/// Whether an object is not data: a function, a macro, a loop, a namespace.
pub(super) fn is_handle(value: &Value, object: &DynObject) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => false,
        ValueKind::Map => {
            let name = object.type_name();
            !is_strict(object) && !name.contains("MergeDict") && !name.contains("Kwargs")
        }
        _ => true,
    }
}

/// The name of a non-data object in messages. It is not printed, since a namespace may be large.
pub(super) fn name_of(object: &DynObject) -> &'static str {
    match object.type_name() {
        name if name.ends_with("::Namespace") => "a namespace",
        name if name.ends_with("::Loop") => "a loop",
        name if name.ends_with("::Macro") => "a macro",
        _ => "a function",
    }
}
