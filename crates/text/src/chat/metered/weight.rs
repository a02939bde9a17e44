//! What values hold: counted, paid for, and made data.
//!
//! A value within many lists is counted as often as it is reached, since whoever compares, prints or copies it reaches
//! it as often. Left out: the places of a program where this is done ([`super`]).

use minijinja::value::{DynObject, Tuple, Value, ValueKind};
use minijinja::{Error, State};

use super::{FUEL_BYTES, FUEL_VALUES, MAX_DEPTH, Namespace, unusual};

/// What a value holds, everything counted as often as it is reached.
#[derive(Clone, Copy, Default)]
pub(in crate::chat) struct Weight {
    pub values: u64,
    /// Of texts, without what holds them.
    pub bytes: u64,
}

impl Weight {
    /// What looking at all of it costs.
    pub fn fuel(self) -> u64 {
        self.values / FUEL_VALUES + self.bytes / FUEL_BYTES
    }
}

/// Pays for a work that looks at all of these values, and says how much they are.
pub(in crate::chat) fn weigh(state: &State, values: &[Value]) -> Result<Weight, Error> {
    let mut walk = Walk { state, weight: Weight::default(), paid: Weight::default() };
    for value in values {
        walk.weigh(value, 0)?;
    }
    walk.pay()?;
    Ok(walk.weight)
}

/// Fails where so many bytes could not be paid for. To be asked before they are taken.
pub(in crate::chat) fn ensure(state: &State, bytes: u64) -> Result<(), Error> {
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    if bytes / FUEL_BYTES < left { Ok(()) } else { state.consume_fuel(u64::MAX) }
}

struct Walk<'state, 'template, 'env> {
    state: &'state State<'template, 'env>,
    weight: Weight,
    paid: Weight,
}

impl Walk<'_, '_, '_> {
    /// Pays for what was seen since the last time.
    fn pay(&mut self) -> Result<(), Error> {
        let values = self.weight.values - self.paid.values;
        let bytes = self.weight.bytes - self.paid.bytes;
        self.paid = self.weight;
        self.state.consume_fuel(values / FUEL_VALUES + bytes / FUEL_BYTES)
    }

    fn see(&mut self, bytes: usize) -> Result<(), Error> {
        self.weight.values += 1;
        self.weight.bytes += bytes as u64;
        let unpaid = (self.weight.values - self.paid.values) + (self.weight.bytes - self.paid.bytes);
        if unpaid >= 4096 { self.pay() } else { Ok(()) }
    }

    fn weigh(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.see(value.as_str().map_or(0, str::len))?;
        let Some(object) = value.as_object() else { return Ok(()) };
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        // A namespace's own values are counted too: it may be printed. A macro or a loop is a name.
        if is_handle(value, object) && object.downcast_ref::<Namespace>().is_none() {
            return Ok(());
        }
        match value.kind() {
            ValueKind::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.weigh(&key, depth + 1)?;
                    self.weigh(&item, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.weigh(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The value as data, if it is not: `None` where it is.
    fn keep(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        self.see(0)?;
        // An item that could not be computed is the error that says why.
        if value.kind() == ValueKind::Invalid {
            return Err(value.try_iter().err().unwrap_or_else(too_deep));
        }
        let Some(object) = value.as_object() else { return Ok(None) };
        if is_handle(value, object) {
            return match depth {
                0 => Ok(None),
                _ => Err(unusual(&format!("expected data in a list or a map, found {}", name_of(object)))),
            };
        }
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        if value.kind() == ValueKind::Map {
            return self.keep_map(object, depth);
        }
        let mut changed: Option<Vec<Value>> = (!is_plain(object)).then(Vec::new);
        for (index, item) in value.try_iter()?.enumerate() {
            let new = self.keep(&item, depth + 1)?;
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

    fn keep_map(&mut self, object: &DynObject, depth: usize) -> Result<Option<Value>, Error> {
        let mut is_changed = !is_plain(object);
        let mut pairs = Vec::new();
        for (key, item) in object.try_iter_pairs().into_iter().flatten() {
            // A key was looked at whole to find its place.
            self.see(key.as_str().map_or(0, str::len))?;
            let new = (self.keep(&key, depth + 1)?, self.keep(&item, depth + 1)?);
            is_changed |= new.0.is_some() || new.1.is_some();
            pairs.push((new.0.unwrap_or(key), new.1.unwrap_or(item)));
        }
        Ok(is_changed.then(|| Value::from_pairs(pairs)))
    }
}

fn too_deep() -> Error {
    unusual(&format!("expected values at most {MAX_DEPTH} levels deep, found deeper ones"))
}

/// A value that was just made, as data.
pub(super) fn kept(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_object().is_none() && value.kind() != ValueKind::Invalid {
        return Ok(value.clone());
    }
    let mut walk = Walk { state, weight: Weight::default(), paid: Weight::default() };
    let new = walk.keep(value, 0)?;
    walk.pay()?;
    Ok(new.unwrap_or_else(|| value.clone()))
}

/// A list, a tuple or a map that has all that it holds.
fn is_plain(object: &DynObject) -> bool {
    let name = object.type_name();
    object.downcast_ref::<Vec<Value>>().is_some()
        || object.downcast_ref::<Tuple>().is_some()
        || name.contains("indexmap::")
        || name.ends_with("::GroupTuple")
}

/// What is no data: a function, a macro, a loop, a namespace.
pub(super) fn is_handle(value: &Value, object: &DynObject) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => false,
        ValueKind::Map => {
            let name = object.type_name();
            !is_plain(object) && !name.contains("MergeDict") && !name.contains("Kwargs")
        }
        _ => true,
    }
}

/// What no data is called in messages. It is not printed: a namespace may hold much.
pub(super) fn name_of(object: &DynObject) -> &'static str {
    match object.type_name() {
        name if name.ends_with("::Namespace") => "a namespace",
        name if name.ends_with("::Loop") => "a loop",
        name if name.ends_with("::Macro") => "a macro",
        _ => "a function",
    }
}
