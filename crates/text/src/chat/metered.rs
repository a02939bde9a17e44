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

mod paying;
mod weight;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Enumerator, Kwargs, Object, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use paying::{DEEP, SHALLOW, add_paying};
pub(super) use paying::{PIECE, pay_for_trim, pieces_made};
pub(super) use weight::{Weight, ensure, weigh};
use weight::{is_handle, kept, name_of};

/// Deepest value. JSON that a user sends is at most half as deep.
const MAX_DEPTH: usize = 260;

/// Bytes that one unit of fuel pays for, as the engine has it.
pub(super) const FUEL_BYTES: u64 = 64;

/// Values that are looked at for one unit of fuel.
const FUEL_VALUES: u64 = 4;

const KEPT: &str = "\0kept";
const WEIGHED: &str = "\0weighed";
const SET: &str = "\0set";
const SLICED: &str = "\0sliced";
const WALKED: &str = "\0walked";
const RECURSED: &str = "\0recursed";
/// The engine's sign of a loop that may call itself.
const RECURSIVE: u8 = 2;
/// What the engine does not remember the number of.
const UNNUMBERED: u8 = !0;

/// Adds the meters, and the functions that make values.
pub(super) fn add_meters(environment: &mut Environment<'_>) {
    environment.add_filter(KEPT, |state: &State, value: Value| kept(state, &value));
    environment.add_filter(WEIGHED, |state: &State, value: Value| weigh(state, &[value]).map(|_| ()));
    environment.add_filter(SET, set);
    environment.add_filter(SLICED, sliced);
    environment.add_filter(WALKED, |state: &State, value: &Value| {
        state.consume_fuel(value.as_str().map_or(0, str::len) as u64 / FUEL_BYTES)
    });
    environment.add_filter(RECURSED, |state: &State, it: &Value| {
        let len = it.get_attr("length").ok().and_then(|len| len.as_usize()).unwrap_or(0);
        state.consume_fuel(len as u64 / FUEL_VALUES)
    });
    add_paying(environment);
    environment.add_function("namespace", namespace);
    // It prints whatever there is.
    environment.remove_global("debug");
}

/// The same program with meters. Jumps lead to the meters before an instruction.
///
/// # Errors
/// If an instruction cannot be metered, with its line.
pub(super) fn metered<'source>(program: &Instructions<'source>) -> Result<Instructions<'source>, String> {
    let source: Vec<Instruction<'source>> = (0..).map_while(|at| program.get(at).cloned()).collect();
    let targets: BTreeSet<u32> = source.iter().filter_map(target).collect();
    let mut all = Vec::with_capacity(source.len());
    let mut starts = vec![0];
    for (at, instruction) in source.iter().enumerate() {
        // What comes before is known where nothing jumps over it; a loop's beginning stands before it whoever jumps.
        let is_known = matches!(instruction, Instruction::Iterate(_)) || !targets.contains(&(at as u32));
        let before = at.checked_sub(1).filter(|_| is_known).map(|at| &source[at]);
        let line = || program.get_line(at as u32).unwrap_or(0);
        let around = around(instruction.clone(), before).map_err(|words| format!("line {}: {words}", line()))?;
        let (before, instruction, behind) = around;
        starts.push(starts[at] + (before.len() + 1 + behind.len()) as u32);
        all.push((before, instruction, behind));
    }
    let meters = numbers(&source);
    let mut metered = Instructions::new(program.name(), program.source());
    for (at, (before, mut instruction, behind)) in all.into_iter().enumerate() {
        if let Some(target) = target_mut(&mut instruction) {
            *target = starts.get(*target as usize).copied().unwrap_or(*target);
        }
        let line = program.get_line(at as u32).unwrap_or(0) as u16;
        for mut instruction in before.into_iter().chain([instruction]).chain(behind) {
            if let Instruction::ApplyFilter(name, _, number) = &mut instruction {
                *number = meters.iter().find(|(meter, _)| meter == name).map_or(*number, |(_, number)| *number);
            }
            metered.add_with_line(instruction, line);
        }
    }
    Ok(metered)
}

/// Where an instruction may go on.
fn target(instruction: &Instruction<'_>) -> Option<u32> {
    target_mut(&mut instruction.clone()).copied()
}

fn target_mut<'it>(instruction: &'it mut Instruction<'_>) -> Option<&'it mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// Numbers under which the engine finds the meters again, as far as the program's own filters and tests leave some.
fn numbers(program: &[Instruction<'_>]) -> Vec<(&'static str, u8)> {
    /// So many numbers the engine has.
    const NUMBERS: u8 = 50;
    let number = |it: &Instruction<'_>| match it {
        Instruction::ApplyFilter(_, _, number) | Instruction::PerformTest(_, _, number) => Some(*number),
        _ => None,
    };
    let first = program.iter().filter_map(number).max().map_or(0, |number| number.saturating_add(1));
    [KEPT, WEIGHED, SET, SLICED, WALKED, RECURSED].into_iter().zip(first..NUMBERS).collect()
}

type Around<'source> = (Vec<Instruction<'source>>, Instruction<'source>, Vec<Instruction<'source>>);

/// An instruction, with what goes before it and what comes behind it. `last` is what the program has done before, where
/// that is known.
fn around<'source>(
    instruction: Instruction<'source>,
    last: Option<&Instruction<'_>>,
) -> Result<Around<'source>, String> {
    use Instruction as I;
    let meter = |name| [I::DupTop, I::ApplyFilter(name, Some(1), UNNUMBERED), I::DiscardTop];
    let below = |name| [I::Swap].into_iter().chain(meter(name)).chain([I::Swap]);
    let weighs_both = || meter(WEIGHED).into_iter().chain(below(WEIGHED)).collect();
    let keeps = || vec![I::ApplyFilter(KEPT, Some(1), UNNUMBERED)];
    Ok(match instruction {
        // What a text is added to is a text.
        I::Add if constant_text(last) => (Vec::new(), instruction, Vec::new()),
        I::BuildMap(_) | I::BuildList(_) | I::BuildTuple(_) | I::Add | I::Mul => (Vec::new(), instruction, keeps()),
        I::Slice => (vec![I::ApplyFilter(SLICED, Some(4), UNNUMBERED), I::UnpackList(4)], instruction, keeps()),
        // Named arguments are no value of the template's; each of theirs is bounded as all constants are.
        I::LoadConst(ref value) if value.as_object().is_some_and(|it| !it.type_name().contains("Kwargs")) => {
            (Vec::new(), instruction, keeps())
        }
        I::PushLoop(_) => (meter(WALKED).to_vec(), instruction, Vec::new()),
        // A loop that calls itself does not come to what is before it, so it pays for each item.
        I::Iterate(_) if matches!(last, Some(I::PushLoop(flags)) if flags & RECURSIVE != 0) => {
            let behind = vec![I::Lookup("loop"), I::ApplyFilter(RECURSED, Some(1), UNNUMBERED), I::DiscardTop];
            (Vec::new(), instruction, behind)
        }
        I::CallFunction(..) | I::CallObject(_) => (Vec::new(), instruction, keeps()),
        I::CallMethod(name, count) => {
            // A loop compares what it is asked with what it was asked before, and divides by the number of values.
            let before = match (name, count) {
                ("changed", Some(2)) => meter(WEIGHED).to_vec(),
                ("changed", _) => return Err("loop.changed: expected one value, found another number".to_owned()),
                ("cycle", None | Some(0 | 1)) => return Err("loop.cycle: expected values, found none".to_owned()),
                _ => Vec::new(),
            };
            (before, instruction, keeps())
        }
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte if constant_text(last) => (Vec::new(), instruction, Vec::new()),
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::StringConcat | I::CompareAndPreserve(_) => {
            (weighs_both(), instruction, Vec::new())
        }
        I::GetItem if constant_text(last) => (Vec::new(), instruction, Vec::new()),
        I::GetItem => (meter(WEIGHED).into_iter().chain(below(WALKED)).collect(), instruction, Vec::new()),
        I::PerformTest(name, count, _) => match count {
            Some(1) if QUICK_TESTS.contains(&name) => (Vec::new(), instruction, Vec::new()),
            Some(1) => (meter(WALKED).to_vec(), instruction, Vec::new()),
            Some(2) => (weighs_both(), instruction, Vec::new()),
            _ => return Err(format!("is {name}: expected at most one argument, found more")),
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
            return Err("include, import and extends: expected one template, found a second".to_owned());
        }
        other => (Vec::new(), other, Vec::new()),
    })
}

/// Whether an instruction gives a short text. Whatever it is compared with or added to, that takes no longer.
fn constant_text(instruction: Option<&Instruction<'_>>) -> bool {
    const SHORT: usize = 64;
    let Some(Instruction::LoadConst(value)) = instruction else { return false };
    value.as_str().is_some_and(|text| text.len() <= SHORT)
}

/// Tests that look at the kind of a value alone.
const QUICK_TESTS: [&str; 8] = ["defined", "undefined", "none", "string", "number", "mapping", "true", "false"];

fn unusual(words: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, words.to_owned())
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
fn namespace(state: &State, defaults: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = Namespace::default();
    let defaults = defaults.into_values();
    weigh(state, &defaults)?;
    for given in defaults {
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

/// What a slice is made of, from the last to the first as the next instruction takes it apart: paid for, since the
/// places of characters are counted, and so are those of items.
fn sliced(state: &State, value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let fuel = match value.as_str() {
        Some(text) => text.len() as u64 / FUEL_BYTES,
        None => value.len().unwrap_or(0) as u64 / FUEL_VALUES,
    };
    state.consume_fuel(fuel)?;
    Ok(Value::from(vec![step, stop, start, value]))
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
