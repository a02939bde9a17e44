//! A template's program with a meter at every place where its work would be unbounded.
//!
//! The engine's fuel pays for instructions, for bytes that are written and for items that are visited, but not for what
//! lies within values: two lists that hold each other sixty times over are compared for ever, a list within a list ten
//! thousand deep is freed by as many calls, a namespace that holds itself is printed until the stack ends. A fork or an
//! interpreter of our own would be a large thing to keep right; the engine's instructions are a short list. So three
//! rules are built into the compiled program, and hold for every value that it ever has:
//!
//! - *What is made is looked through* ([`kept`]): behind every instruction that makes a list, a map or a tuple, and
//!   behind every filter and call. It is at most [`MAX_DEPTH`] levels deep, holds data alone (no namespaces, macros or
//!   loops, so nothing can hold itself), and each visited value is paid for, as often as it is visited. What the engine
//!   would compute later, item by item, is made a list now, as it is in Python.
//! - *What is read whole is paid for before* ([`weigh`]): operands of comparisons, of `in` and of `~`, arguments of
//!   filters and methods, what is printed.
//! - *Namespaces are ours* ([`Namespace`]), and hold no namespace.
//!
//! With them every operation takes time and memory in proportion to what it has paid, every stack stays shallow, and
//! the whole is bounded by the fuel alone. Left out: the depth of expressions and blocks ([`super::bounds`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{DynObject, Enumerator, Kwargs, Object, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

/// Deepest value. JSON that a user sends is at most half as deep.
const MAX_DEPTH: usize = 260;

/// Bytes that one unit of fuel pays for, as the engine has it.
pub(super) const FUEL_BYTES: u64 = 64;

/// Values that are looked at for one unit of fuel.
const FUEL_VALUES: u64 = 4;

const KEPT: &str = "\0kept";
const WEIGHED: &str = "\0weighed";
const SET: &str = "\0set";
/// What the engine does not remember the number of.
const UNNUMBERED: u8 = !0;

/// Filters that look no further than the first level of what they are given.
const SHALLOW: [&str; 9] = ["length", "count", "first", "last", "default", "d", "list", "items", "reverse"];

/// The other filters of the engine and ours, with the names under which they pay first.
#[rustfmt::skip]
const DEEP: [(&str, &str); 42] = [
    ("safe", "\0safe"), ("escape", "\0escape"), ("e", "\0e"), ("lower", "\0lower"), ("upper", "\0upper"),
    ("title", "\0title"), ("capitalize", "\0capitalize"), ("replace", "\0replace"), ("dictsort", "\0dictsort"),
    ("trim", "\0trim"), ("join", "\0join"), ("split", "\0split"), ("lines", "\0lines"), ("round", "\0round"),
    ("abs", "\0abs"), ("int", "\0int"), ("float", "\0float"), ("attr", "\0attr"), ("min", "\0min"), ("max", "\0max"),
    ("sort", "\0sort"), ("string", "\0string"), ("bool", "\0bool"), ("batch", "\0batch"), ("slice", "\0slice"),
    ("sum", "\0sum"), ("indent", "\0indent"), ("select", "\0select"), ("reject", "\0reject"),
    ("selectattr", "\0selectattr"), ("rejectattr", "\0rejectattr"), ("map", "\0map"), ("groupby", "\0groupby"),
    ("unique", "\0unique"), ("chain", "\0chain"), ("zip", "\0zip"), ("pprint", "\0pprint"), ("format", "\0format"),
    ("tojson", "\0tojson"), ("wordcount", "\0wordcount"), ("urlencode", "\0urlencode"), ("center", "\0center"),
];

/// Adds the meters, and the functions that make values.
pub(super) fn add_meters(environment: &mut Environment<'_>) {
    environment.add_filter(KEPT, |state: &State, value: Value| kept(state, &value));
    environment.add_filter(WEIGHED, |state: &State, value: Value| weigh(state, &[value]).map(|_| ()));
    environment.add_filter(SET, set);
    for (name, paying) in DEEP {
        environment.add_filter(paying, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            weigh(state, &arguments)?;
            state.apply_filter(name, &arguments)
        });
    }
    environment.add_function("namespace", namespace);
    // It prints whatever there is.
    environment.remove_global("debug");
}

/// The same program with meters. Jumps lead to the meters before an instruction.
pub(super) fn metered<'source>(program: &Instructions<'source>) -> Result<Instructions<'source>, Error> {
    let mut all = Vec::new();
    while let Some(instruction) = program.get(all.len() as u32) {
        all.push(around(instruction.clone())?);
    }
    let mut starts = Vec::with_capacity(all.len() + 1);
    starts.push(0);
    for (before, _, behind) in &all {
        starts.push(starts.last().copied().unwrap_or(0) + (before.len() + 1 + behind.len()) as u32);
    }
    let moved = |target: u32| starts.get(target as usize).copied().unwrap_or(target);
    let mut metered = Instructions::new(program.name(), program.source());
    for (index, (before, mut instruction, behind)) in all.into_iter().enumerate() {
        match &mut instruction {
            Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::Iterate(target)
            | Instruction::BuildMacro(_, target, _) => *target = moved(*target),
            _ => {}
        }
        let line = program.get_line(index as u32).unwrap_or(0) as u16;
        for instruction in before.into_iter().chain([instruction]).chain(behind) {
            metered.add_with_line(instruction, line);
        }
    }
    Ok(metered)
}

type Around<'source> = (Vec<Instruction<'source>>, Instruction<'source>, Vec<Instruction<'source>>);

/// An instruction, with what goes before it and what comes behind it.
fn around(instruction: Instruction<'_>) -> Result<Around<'_>, Error> {
    use Instruction as I;
    let weighs = || [I::DupTop, I::ApplyFilter(WEIGHED, Some(1), UNNUMBERED), I::DiscardTop];
    let weighs_both = || weighs().into_iter().chain([I::Swap]).chain(weighs()).chain([I::Swap]).collect();
    let keeps = || vec![I::ApplyFilter(KEPT, Some(1), UNNUMBERED)];
    Ok(match instruction {
        I::BuildMap(_) | I::BuildList(_) | I::BuildTuple(_) | I::Slice | I::Add | I::Mul => {
            (Vec::new(), instruction, keeps())
        }
        // Named arguments are no value of the template's; each of theirs is bounded as all constants are.
        I::LoadConst(ref value) if value.as_object().is_some_and(|it| !it.type_name().contains("Kwargs")) => {
            (Vec::new(), instruction, keeps())
        }
        I::CallFunction(..) | I::CallObject(_) => (Vec::new(), instruction, keeps()),
        I::CallMethod(name, count) => {
            // A loop compares what it is asked with what it was asked before.
            let before = match (name, count) {
                ("changed", Some(2)) => weighs().to_vec(),
                ("changed", _) => return Err(unusual("loop.changed: expected one value, found another number")),
                _ => Vec::new(),
            };
            (before, instruction, keeps())
        }
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::StringConcat | I::CompareAndPreserve(_) => {
            (weighs_both(), instruction, Vec::new())
        }
        I::GetItem => (weighs().to_vec(), instruction, Vec::new()),
        I::PerformTest(name, count, _) => match count {
            Some(1) if matches!(name, "lower" | "upper") => (weighs().to_vec(), instruction, Vec::new()),
            Some(1) => (Vec::new(), instruction, Vec::new()),
            Some(2) => (weighs_both(), instruction, Vec::new()),
            _ => return Err(unusual(&format!("is {name}: expected at most one argument, found more"))),
        },
        I::ApplyFilter(name, count, number) => {
            if SHALLOW.contains(&name) {
                return Ok((Vec::new(), instruction, keeps()));
            }
            // Others are unknown to the engine too, which says so if it comes to them.
            let paying = DEEP.iter().find(|(known, _)| *known == name).map_or(name, |(_, paying)| paying);
            (Vec::new(), I::ApplyFilter(paying, count, number), keeps())
        }
        I::SetAttr(name) => {
            let before = vec![I::LoadConst(Value::from(name)), I::ApplyFilter(SET, Some(3), UNNUMBERED)];
            (before, I::DiscardTop, Vec::new())
        }
        // There is no other template, but this one could include itself.
        I::Include(_) | I::LoadBlocks | I::ExportLocals => {
            return Err(unusual("include, import and extends: expected one template, found a second"));
        }
        other => (Vec::new(), other, Vec::new()),
    })
}

fn unusual(words: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, words.to_owned())
}

/// What a value holds, everything counted as often as it is reached.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    pub values: u64,
    /// Of texts, without what holds them.
    pub bytes: u64,
}

/// Pays for a work that looks at all of these values, and says how much they are.
pub(super) fn weigh(state: &State, values: &[Value]) -> Result<Weight, Error> {
    let mut walk = Walk { state, weight: Weight::default(), paid: Weight::default() };
    for value in values {
        walk.weigh(value, 0)?;
    }
    walk.pay()?;
    Ok(walk.weight)
}

/// Fails where so many bytes could not be paid for. To be asked before they are taken.
pub(super) fn ensure(state: &State, bytes: u64) -> Result<(), Error> {
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
fn kept(state: &State, value: &Value) -> Result<Value, Error> {
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
fn is_handle(value: &Value, object: &DynObject) -> bool {
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
fn name_of(object: &DynObject) -> &'static str {
    match object.type_name() {
        name if name.ends_with("::Namespace") => "a namespace",
        name if name.ends_with("::Loop") => "a loop",
        name if name.ends_with("::Macro") => "a macro",
        _ => "a function",
    }
}

/// What `namespace` gives: values by their names, which a template may change.
#[derive(Debug, Default)]
struct Namespace(Mutex<BTreeMap<String, Value>>);

impl Namespace {
    fn values(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        if let Some(object) = value.as_object().filter(|object| is_handle(&value, object)) {
            return Err(unusual(&format!("namespace: {name:.40}: expected data, found {}", name_of(object))));
        }
        self.values().insert(name.to_owned(), value);
        Ok(())
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values().get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.values().keys().map(|name| Value::from(name.as_str())).collect())
    }
}

/// The function `namespace(map, name=value)`.
fn namespace(defaults: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = Namespace::default();
    for given in defaults.into_values() {
        let options = Kwargs::try_from(given.clone()).ok();
        if let Some(options) = options {
            for name in options.args() {
                namespace.set(name, options.get::<Value>(name)?)?;
            }
            options.assert_all_used()?;
            continue;
        }
        let pairs = given.as_object().filter(|_| given.kind() == ValueKind::Map).and_then(|map| map.try_iter_pairs());
        let pairs = pairs.ok_or_else(|| unusual(&format!("namespace: expected names, found {}", given.kind())))?;
        for (name, value) in pairs {
            if let Some(name) = name.as_str() {
                namespace.set(name, value)?;
            }
        }
    }
    Ok(Value::from_object(namespace))
}

/// An assignment to a name of a namespace.
fn set(value: Value, target: &Value, name: &str) -> Result<(), Error> {
    match target.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(name, value),
        None => Err(unusual(&format!("can only assign to namespaces, not {}", target.kind()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_of_the_engine_pays() {
        // The engine tells the names of its filters only to those who debug it.
        let known = format!("{:?}", Environment::new());
        let (_, behind) = known.split_once("filters: [").expect("it lists filters");
        let (filters, _) = behind.split_once(']').expect("the list ends");
        let names: Vec<&str> = filters.split(", ").map(|name| name.trim_matches('"')).collect();
        assert!(names.len() > 40, "{names:?}");
        let pays = |name: &&str| SHALLOW.contains(name) || DEEP.iter().any(|(known, _)| known == name);
        assert_eq!(names.into_iter().filter(|name| !pays(name)).collect::<Vec<_>>(), [""; 0]);
        assert!(DEEP.iter().all(|(name, paying)| paying.strip_prefix('\0') == Some(*name)));
    }
}
