//! Meters for untrusted templates: instructions are added to the compiled program so that its fuel bounds all work.
//!
//! The engine's fuel counts instructions, bytes written and items visited, but not the contents of values: two lists
//! that are nested in each other sixty times are compared forever, a list ten thousand levels deep is freed
//! recursively, a namespace that contains itself is printed until the stack overflows. A fork of the engine, or an
//! interpreter of our own, would be much to maintain; the engine's instructions are a short list. So three rules are
//! compiled into the program, and hold for every value that it has:
//!
//! - *New values are checked* ([`checked`]), after every instruction that makes a list, a map or a tuple, and after
//!   every filter and call. A value is at most [`MAX_DEPTH`] levels deep, holds only data (no namespaces, macros or
//!   loops, so there are no cycles), and each visited value is charged, as often as it is visited. Lazy values become
//!   lists, as in Python.
//! - *Values that are read completely are charged before* ([`charge`]): operands of comparisons, of `in` and of `~`,
//!   arguments of filters and methods, printed values.
//! - *Namespaces are this crate's* ([`Namespace`]), and hold no namespaces.
//!
//! So every operation takes time and memory in proportion to the fuel that it used, recursion is shallow, and the fuel
//! bounds everything. The depth of expressions and blocks is limited in [`super::bounds`].
//!
//! All of this needs minijinja's unstable `machinery`, so its version is pinned. With fuel, a recursion limit, the
//! bounds and charged filters alone, 20 attacks of `tests/text/hostile_templates.rs` succeed, 13 of them by a stack
//! overflow, which ends the process. Every part is needed by some attack there (found by leaving the part out):
//!
//! - lists, maps and tuples are checked: `deep_values_are_refused`, and `{s: 1}` of `cheap_looking_work_is_charged`;
//! - results of `+` and `*`: `ns.b + ns.b` of `bombs_are_refused`;
//! - slices: `ns.a[0:]` of `deep_values_are_refused`, `s[-1:]` of `cheap_looking_work_is_charged`;
//! - results of calls: `dict(a=ns.a)` of `deep_values_are_refused`, `dict(**d)` of `cheap_looking_work_is_charged`;
//! - comparisons, `in`, `~`, tests and `loop.changed`: `contents_are_charged_where_they_are_read`;
//! - items of texts and loops over texts: `s[-1]`, `for c in s` and `loop(s)` of `cheap_looking_work_is_charged`;
//! - filters: `trim`, `sum`, `format` and names of fields in `cheap_looking_work_is_charged`;
//! - own namespaces: `cyclic_values_are_refused`, and `namespace(**d)` of `cheap_looking_work_is_charged`;
//! - no second template: `a_template_does_not_run_itself_without_meters`;
//! - the engine's lexer for [`super::bounds`]: `deep_sources_are_refused`.

mod filters;
mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Enumerator, Kwargs, Object, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use filters::{DEEP, SHALLOW, add_metered_filters};
pub(super) use filters::{VALUE_OVERHEAD_BYTES, charge_trim, pieces_bytes};
pub(super) use size::{ValueSize, charge, ensure_affordable};
use size::{checked, is_handle, name_of};

/// Deepest value. A user's JSON is at most half as deep.
const MAX_DEPTH: usize = 260;

/// Bytes per unit of fuel, as in the engine.
pub(super) const FUEL_BYTES: u64 = 64;

/// Visited values per unit of fuel.
const FUEL_VALUES: u64 = 4;

const CHECKED: &str = "\0checked";
const CHARGED: &str = "\0charged";
const SET_FIELD: &str = "\0set_field";
const SLICE_OPERANDS: &str = "\0slice_operands";
const CHARGED_BYTES: &str = "\0charged_bytes";
const CHARGED_ITEMS: &str = "\0charged_items";
/// The engine's flag of a recursive loop.
const RECURSIVE: u8 = 2;
/// The number of a filter that the engine does not cache.
const UNNUMBERED: u8 = !0;

/// All instructions that [`with_meters`] was written for. If an upgrade of minijinja does not compile here, decide
/// which meters its new instructions need.
#[rustfmt::skip]
const _: fn(&Instruction<'_>) = |instruction| {
    use Instruction as I;
    match instruction {
        // With meters, refused, or replaced.
        I::BuildMap(_) | I::BuildList(_) | I::BuildTuple(_) | I::Add | I::Mul | I::Slice | I::LoadConst(_)
        | I::PushLoop(_) | I::Iterate(_) | I::CallFunction(..) | I::CallObject(_) | I::CallMethod(..) | I::Eq | I::Ne
        | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::StringConcat | I::CompareAndPreserve(_) | I::GetItem
        | I::PerformTest(..) | I::ApplyFilter(..) | I::SetAttr(_) | I::Include(_) | I::LoadBlocks | I::ExportLocals
        // Cheap, or metered by the engine's fuel or by the formatter.
        | I::EmitRaw(_) | I::Emit | I::StoreLocal(_) | I::Lookup(_) | I::GetAttr(_) | I::BuildKwargs(_)
        | I::MergeKwargs(_) | I::UnpackList(_) | I::UnpackLists(_) | I::Sub | I::Div | I::IntDiv | I::Rem | I::Pow
        | I::Neg | I::Not | I::PushWith | I::PushDidNotIterate | I::PopFrame | I::PopLoopFrame | I::Jump(_)
        | I::JumpIfFalse(_) | I::JumpIfFalseOrPop(_) | I::JumpIfTrueOrPop(_) | I::PushAutoEscape | I::PopAutoEscape
        | I::BeginCapture(_) | I::EndCapture | I::DupTop | I::DiscardTop | I::Swap | I::FastSuper | I::FastRecurse
        | I::CallBlock(_) | I::BuildMacro(..) | I::Return | I::IsUndefined | I::Enclose(_) | I::GetClosure => {}
    }
};

/// Adds the meters, and `namespace`.
pub(super) fn add_meters(environment: &mut Environment<'_>) {
    environment.add_filter(CHECKED, |state: &State, value: Value| checked(state, &value));
    environment.add_filter(CHARGED, |state: &State, value: Value| charge(state, &[value]).map(|_| ()));
    environment.add_filter(SET_FIELD, set);
    environment.add_filter(SLICE_OPERANDS, slice_operands);
    environment.add_filter(CHARGED_BYTES, |state: &State, value: &Value| {
        state.consume_fuel(value.as_str().map_or(0, str::len) as u64 / FUEL_BYTES)
    });
    environment.add_filter(CHARGED_ITEMS, |state: &State, it: &Value| {
        let len = it.get_attr("length").ok().and_then(|len| len.as_usize()).unwrap_or(0);
        state.consume_fuel(len as u64 / FUEL_VALUES)
    });
    add_metered_filters(environment);
    environment.add_function("namespace", namespace);
    // `debug` prints everything.
    environment.remove_global("debug");
}

/// The program with meters. Jumps lead to the meters before an instruction.
///
/// # Errors
/// If an instruction cannot be metered, with its line.
pub(super) fn metered<'source>(program: &Instructions<'source>) -> Result<Instructions<'source>, String> {
    let source: Vec<Instruction<'source>> = (0..).map_while(|at| program.get(at).cloned()).collect();
    let targets: BTreeSet<u32> = source.iter().filter_map(target).collect();
    let mut all = Vec::with_capacity(source.len());
    let mut starts = vec![0];
    for (at, instruction) in source.iter().enumerate() {
        // The previous instruction is known unless a jump leads here; before `Iterate` it is always the loop's start.
        let is_known = matches!(instruction, Instruction::Iterate(_)) || !targets.contains(&(at as u32));
        let before = at.checked_sub(1).filter(|_| is_known).map(|at| &source[at]);
        let line = || program.get_line(at as u32).unwrap_or(0);
        let metered = with_meters(instruction.clone(), before).map_err(|words| format!("line {}: {words}", line()))?;
        let (before, instruction, after) = metered;
        starts.push(starts[at] + (before.len() + 1 + after.len()) as u32);
        all.push((before, instruction, after));
    }
    let meters = numbers(&source);
    let mut metered = Instructions::new(program.name(), program.source());
    for (at, (before, mut instruction, after)) in all.into_iter().enumerate() {
        if let Some(target) = target_mut(&mut instruction) {
            *target = starts.get(*target as usize).copied().unwrap_or(*target);
        }
        let line = program.get_line(at as u32).unwrap_or(0) as u16;
        for mut instruction in before.into_iter().chain([instruction]).chain(after) {
            if let Instruction::ApplyFilter(name, _, number) = &mut instruction {
                *number = meters.iter().find(|(meter, _)| meter == name).map_or(*number, |(_, number)| *number);
            }
            metered.add_with_line(instruction, line);
        }
    }
    Ok(metered)
}

/// The target of a jump.
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

/// Cache numbers for the meters, as far as the program's own filters and tests leave some.
fn numbers(program: &[Instruction<'_>]) -> Vec<(&'static str, u8)> {
    /// The size of the engine's cache.
    const NUMBERS: u8 = 50;
    let number = |it: &Instruction<'_>| match it {
        Instruction::ApplyFilter(_, _, number) | Instruction::PerformTest(_, _, number) => Some(*number),
        _ => None,
    };
    let first = program.iter().filter_map(number).max().map_or(0, |number| number.saturating_add(1));
    [CHECKED, CHARGED, SET_FIELD, SLICE_OPERANDS, CHARGED_BYTES, CHARGED_ITEMS]
        .into_iter()
        .zip(first..NUMBERS)
        .collect()
}

type WithMeters<'source> = (Vec<Instruction<'source>>, Instruction<'source>, Vec<Instruction<'source>>);

/// An instruction with the meters before and after it. `last` is the previous instruction, if it is known.
fn with_meters<'source>(
    instruction: Instruction<'source>,
    last: Option<&Instruction<'_>>,
) -> Result<WithMeters<'source>, String> {
    use Instruction as I;
    let meter = |name| [I::DupTop, I::ApplyFilter(name, Some(1), UNNUMBERED), I::DiscardTop];
    let below = |name| [I::Swap].into_iter().chain(meter(name)).chain([I::Swap]);
    let charge_both = || meter(CHARGED).into_iter().chain(below(CHARGED)).collect();
    let check_result = || vec![I::ApplyFilter(CHECKED, Some(1), UNNUMBERED)];
    Ok(match instruction {
        // Adding to a text gives a text.
        I::Add if constant_text(last) => (Vec::new(), instruction, Vec::new()),
        I::BuildMap(_) | I::BuildList(_) | I::BuildTuple(_) | I::Add | I::Mul => {
            (Vec::new(), instruction, check_result())
        }
        I::Slice => {
            (vec![I::ApplyFilter(SLICE_OPERANDS, Some(4), UNNUMBERED), I::UnpackList(4)], instruction, check_result())
        }
        // Keyword arguments are not a value of the template, and constants are bounded.
        I::LoadConst(ref value) if value.as_object().is_some_and(|it| !it.type_name().contains("Kwargs")) => {
            (Vec::new(), instruction, check_result())
        }
        I::PushLoop(_) => (meter(CHARGED_BYTES).to_vec(), instruction, Vec::new()),
        // A recursive call of a loop skips the instruction before it, so each item is charged.
        I::Iterate(_) if matches!(last, Some(I::PushLoop(flags)) if flags & RECURSIVE != 0) => {
            let after = vec![I::Lookup("loop"), I::ApplyFilter(CHARGED_ITEMS, Some(1), UNNUMBERED), I::DiscardTop];
            (Vec::new(), instruction, after)
        }
        I::CallFunction(..) | I::CallObject(_) => (Vec::new(), instruction, check_result()),
        I::CallMethod(name, count) => {
            // `changed` compares its argument with the previous one, and `cycle` divides by the number of arguments.
            let before = match (name, count) {
                ("changed", Some(2)) => meter(CHARGED).to_vec(),
                ("changed", _) => return Err("loop.changed: expected one value, found another number".to_owned()),
                ("cycle", None | Some(0 | 1)) => return Err("loop.cycle: expected values, found none".to_owned()),
                _ => Vec::new(),
            };
            (before, instruction, check_result())
        }
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte if constant_text(last) => (Vec::new(), instruction, Vec::new()),
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::StringConcat | I::CompareAndPreserve(_) => {
            (charge_both(), instruction, Vec::new())
        }
        I::GetItem if constant_text(last) => (Vec::new(), instruction, Vec::new()),
        I::GetItem => (meter(CHARGED).into_iter().chain(below(CHARGED_BYTES)).collect(), instruction, Vec::new()),
        I::PerformTest(name, count, _) => match count {
            Some(1) if QUICK_TESTS.contains(&name) => (Vec::new(), instruction, Vec::new()),
            Some(1) => (meter(CHARGED_BYTES).to_vec(), instruction, Vec::new()),
            Some(2) => (charge_both(), instruction, Vec::new()),
            _ => return Err(format!("is {name}: expected at most one argument, found more")),
        },
        I::ApplyFilter(name, count, number) => {
            if SHALLOW.contains(&name) {
                return Ok((Vec::new(), instruction, check_result()));
            }
            // Other filters are unknown to the engine, which reports them when they are applied.
            let metered = DEEP.iter().find(|(known, _)| *known == name).map_or(name, |(_, metered)| metered);
            (Vec::new(), I::ApplyFilter(metered, count, number), check_result())
        }
        I::SetAttr(name) => {
            let before = vec![I::LoadConst(Value::from(name)), I::ApplyFilter(SET_FIELD, Some(3), UNNUMBERED)];
            (before, I::DiscardTop, Vec::new())
        }
        // There is no other template, but a template could include itself.
        I::Include(_) | I::LoadBlocks | I::ExportLocals => {
            return Err("include, import and extends: expected one template, found a second".to_owned());
        }
        other => (Vec::new(), other, Vec::new()),
    })
}

/// Whether an instruction loads a short text, with which any comparison or addition is cheap.
fn constant_text(instruction: Option<&Instruction<'_>>) -> bool {
    const SHORT: usize = 64;
    let Some(Instruction::LoadConst(value)) = instruction else { return false };
    value.as_str().is_some_and(|text| text.len() <= SHORT)
}

/// Tests that look only at the kind of a value.
const QUICK_TESTS: [&str; 8] = ["defined", "undefined", "none", "string", "number", "mapping", "true", "false"];

fn invalid_operation(words: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, words.to_owned())
}

/// A `namespace` object: named values that a template may change.
#[derive(Debug, Default)]
struct Namespace(Mutex<BTreeMap<String, Value>>);

impl Namespace {
    fn values(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        if let Some(object) = value.as_object().filter(|object| is_handle(&value, object)) {
            return Err(invalid_operation(&format!("namespace: {name:.40}: expected data, found {}", name_of(object))));
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
    charge(state, &defaults)?;
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
        let pairs =
            pairs.ok_or_else(|| invalid_operation(&format!("namespace: expected names, found {}", given.kind())))?;
        for (name, value) in pairs {
            if let Some(name) = name.as_str() {
                namespace.set(name, value)?;
            }
        }
    }
    Ok(Value::from_object(namespace))
}

/// The operands of a slice, last first, as the next instruction unpacks them. Slicing counts characters or items, so it
/// is charged.
fn slice_operands(state: &State, value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let fuel = match value.as_str() {
        Some(text) => text.len() as u64 / FUEL_BYTES,
        None => value.len().unwrap_or(0) as u64 / FUEL_VALUES,
    };
    state.consume_fuel(fuel)?;
    Ok(Value::from(vec![step, stop, start, value]))
}

/// Assigns to a field of a namespace.
fn set(value: Value, target: &Value, name: &str) -> Result<(), Error> {
    match target.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(name, value),
        None => Err(invalid_operation(&format!("can only assign to namespaces, not {}", target.kind()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_the_version_that_was_read() {
        let lock = include_str!("../../../../Cargo.lock");
        let found = lock.split("name = \"minijinja\"\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(
            found,
            Some("3.1.0"),
            "the meters rely on how minijinja works inside: read what changed in its compiler/instructions.rs, vm/, \
             value/ and filters.rs, run `FORETOKEN_HOSTILE_CASES=20000 cargo test -p foretoken-text --test text \
             hostile_templates`, and name the new version here and in Cargo.toml"
        );
    }

    #[test]
    fn every_filter_of_the_engine_is_metered() {
        // The engine shows the names of its filters only in its debug output.
        let known = format!("{:?}", Environment::new());
        let (_, after) = known.split_once("filters: [").expect("it lists filters");
        let (filters, _) = after.split_once(']').expect("the list ends");
        let names: Vec<&str> = filters.split(", ").map(|name| name.trim_matches('"')).collect();
        assert!(names.len() > 40, "{names:?}");
        let is_metered = |name: &&str| SHALLOW.contains(name) || DEEP.iter().any(|(known, _)| known == name);
        assert_eq!(names.into_iter().filter(|name| !is_metered(name)).collect::<Vec<_>>(), [""; 0]);
        assert!(DEEP.iter().all(|(name, metered_name)| metered_name.strip_prefix('\0') == Some(*name)));
    }
}
