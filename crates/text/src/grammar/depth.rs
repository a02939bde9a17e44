//! How deep a source may lead the library, which follows it with its stack.
//!
//! Nobody can catch a stack that overflows: it ends the whole process. So before the library sees a source, the steps
//! are counted that one path through it can have, and there is a bound on them ([`STEPS_MAX`]).
//!
//! - **A grammar in Lark's notation**: a rule is compiled where it is first named, within what names it, and once; what
//!   stands in brackets is compiled within what stands around them. So no path is longer than all rules and all open
//!   brackets together. A grammar in llama.cpp's notation is counted where it is read (`gbnf`), in the same way.
//! - **A schema**: what a reference leads to is compiled where it is first referred to, and once; within that, the way
//!   to the next reference is no longer than that reference's path in the document. So no path is longer than the paths
//!   of all references together. (Values nest 127 deep at most: JSON is not read beyond.)
//!
//! Left out: expressions, which the library goes through without its stack, and whose nesting it bounds itself.

use std::ops::Range;

use serde_json::Value;

use super::lark::skipped;

/// Most steps of one source. Grammars that people and their programs write have hundreds; two thousand references in
/// the properties of definitions fit.
pub(super) const STEPS_MAX: usize = 10_000;
/// Stack of the thread that compiles. Of all shapes that were tried so many steps took up to 64 MiB, and 128 MiB where
/// the library was compiled without optimization; a question about a part of a schema may take twice that, for the part
/// stands beside the whole. What is not used costs addresses and no memory.
pub(super) const STACK_BYTES: usize = 512 << 20;

/// Refuses a grammar in Lark's notation of too many rules and brackets; its schemas stand at these places.
pub(super) fn of_lark(text: &str, schemas: &[Range<usize>]) -> Result<(), String> {
    let (mut steps, mut rest, mut schemas) = (0, text, schemas.iter().peekable());
    while let Some(first) = rest.chars().next() {
        let at = text.len() - rest.len();
        rest = if let Some(schema) = schemas.next_if(|schema| schema.start <= at) {
            &text[schema.end..]
        } else if let Some((_, behind)) = skipped(rest) {
            behind
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

/// Refuses a schema of too many references.
pub(super) fn of_schema(schema: &Value) -> Result<(), String> {
    let steps = steps_of_references(schema, 1);
    if steps <= STEPS_MAX {
        return Ok(());
    }
    Err(format!("#: expected references whose paths have at most {STEPS_MAX} parts together, found {steps}"))
}

/// How many parts the paths of all references have together in a value at this depth.
fn steps_of_references(value: &Value, depth: usize) -> usize {
    match value {
        Value::Object(fields) => {
            let of_field = |(name, value): (&String, &Value)| {
                let is_reference = name == "$ref" && value.is_string();
                if is_reference { depth } else { steps_of_references(value, depth + 1) }
            };
            fields.iter().map(of_field).sum()
        }
        Value::Array(items) => items.iter().map(|item| steps_of_references(item, depth + 1)).sum(),
        _ => 0,
    }
}
