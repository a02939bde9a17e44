//! Limits on the recursion depth that a source leads the library to.
//!
//! A stack overflow cannot be caught: it ends the whole process. So before the library sees a source, an upper bound of
//! its recursion depth is computed and limited ([`STEPS_MAX`]).
//!
//! - **A grammar in Lark's notation**: a rule is compiled once, recursively where it is first named; brackets are
//!   compiled recursively, too. So the depth is at most the number of rules and open brackets. A grammar in llama.cpp's
//!   notation is counted in the same way where it is parsed (`gbnf`).
//! - **A schema**: the target of a reference is compiled once, recursively where it is first referred to; within it,
//!   the path to the next reference is no longer than that reference's path in the document. So the depth is at most
//!   the total length of the paths of all references. (Values nest at most 127 deep, the limit of the JSON parser.)
//!
//! Regular expressions need no limit here: the library processes them without recursion and limits their nesting.

use std::ops::Range;

use serde_json::Value;

use super::lark::skipped;

/// Largest bound for a source. Usual grammars have hundreds; two thousand references in the properties of definitions
/// fit.
pub(super) const STEPS_MAX: usize = 10_000;
/// Stack of the compiling thread. In tests with sources of many shapes this depth took up to 64 MiB, and 128 MiB with
/// the library compiled without optimization; compiling a part of a schema to locate an error may take twice that,
/// since the document also has the whole schema. Unused stack costs address space only.
pub(super) const STACK_BYTES: usize = 512 << 20;

/// Refuses a grammar in Lark's notation with too many rules and brackets. `schemas` are the places of its schemas.
pub(super) fn check_lark(text: &str, schemas: &[Range<usize>]) -> Result<(), String> {
    let (mut steps, mut rest, mut schemas) = (0, text, schemas.iter().peekable());
    while let Some(first) = rest.chars().next() {
        let at = text.len() - rest.len();
        rest = if let Some(schema) = schemas.next_if(|schema| schema.start <= at) {
            &text[schema.end..]
        } else if let Some((_, after)) = skipped(rest) {
            after
        } else {
            steps += usize::from(matches!(first, ':' | '(' | '['));
            &rest[first.len_utf8()..]
        };
    }
    if steps <= STEPS_MAX {
        return Ok(());
    }
    Err(format!("expected at most {STEPS_MAX} rules and open brackets, found {steps}"))
}

/// Refuses a schema with too many references.
pub(super) fn check_schema(schema: &Value) -> Result<(), String> {
    let steps = reference_path_lens(schema, 1);
    if steps <= STEPS_MAX {
        return Ok(());
    }
    Err(format!("#: expected references whose paths have at most {STEPS_MAX} parts together, found {steps}"))
}

/// The total length of the paths of all references in a value at this depth.
fn reference_path_lens(value: &Value, depth: usize) -> usize {
    match value {
        Value::Object(fields) => {
            let of_field = |(name, value): (&String, &Value)| {
                let is_reference = name == "$ref" && value.is_string();
                if is_reference { depth } else { reference_path_lens(value, depth + 1) }
            };
            fields.iter().map(of_field).sum()
        }
        Value::Array(items) => items.iter().map(|item| reference_path_lens(item, depth + 1)).sum(),
        _ => 0,
    }
}
