//! What the library says of a form, in words that whoever wrote the form can do something with.
//!
//! The library speaks of the grammar that it was given, which is ours where a form is told to it in another notation;
//! it draws the lines around a place, and advises on options that nobody here can set. One place makes of all of this
//! what was expected and what was found: without traces, pictures and advice, and with places only where they are those
//! of the text that somebody wrote.

/// Behind which of its words the library only advises.
const ADVICE: [&str; 4] = ["; consider ", ". Enable '", "; either increase ", " without 'referencing' feature"];

/// What was found, without traces, pictures and advice.
pub(super) fn complaint(error: &str) -> String {
    let error = error.split("\n<").next().unwrap_or_default();
    let mut lines: Vec<&str> = Vec::new();
    let mut is_picture = false;
    for line in error.lines() {
        let number = line.trim_start().split_once(" | ").map(|(number, _)| number);
        let is_line = number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
        let is_mark = is_picture && line.trim() == "^";
        is_picture = is_line;
        if !is_line && !is_mark {
            lines.push(line);
        }
    }
    let mut found = of_expression(&lines).unwrap_or_else(|| lines.join("\n")).trim().to_string();
    for advice in ADVICE {
        found.truncate(found.find(advice).unwrap_or(found.len()));
    }
    let row = found.split_once("Current row has ").and_then(|(_, row)| row.split_once(" items; max is "));
    if let Some((taken, most)) = row {
        return format!("expected at most {most} items of the parser at a place, found {taken}");
    }
    let said = found.strip_prefix("Expected ").and_then(|said| said.split_once(", got "));
    match said {
        Some((expected, found)) => format!("expected {expected}, found {found}"),
        None => found,
    }
}

/// What is wrong with an expression, which the library shows with marks under the place, and how many characters stand
/// before that: the words around, the complaint, and the place.
fn of_expression(lines: &[&str]) -> Option<String> {
    let at = lines.iter().position(|line| line.ends_with("regex parse error:"))?;
    let before = lines[at].strip_suffix("regex parse error:")?;
    let why = lines[at..].iter().find_map(|line| line.strip_prefix("error: "))?;
    // An expression of several lines is shown in another way.
    let marks = lines.get(at + 2).filter(|marks| marks.trim_start().starts_with('^') && lines.len() == at + 4);
    let place = marks.and_then(|marks| marks.find('^')?.checked_sub(INDENTED));
    Some(match place {
        Some(place) => format!("{before}{why}{PLACE}{}", place + 1),
        None => format!("{before}{why}"),
    })
}

/// How far the library indents an expression.
const INDENTED: usize = 4;
/// What stands before the place in an expression.
const PLACE: &str = " at character ";

/// What was found as a whole message: with what was expected, unless it says that itself.
pub(super) fn expected(what: &str, found: String) -> String {
    if found.starts_with("expected ") { found } else { format!("expected {what}, found: {found}") }
}

/// A complaint about a grammar that somebody wrote, its place in words.
pub(super) fn of_grammar(found: String) -> String {
    match place(&found) {
        Some(((line, column), rest)) => format!("at line {line}, column {column}: {rest}"),
        None => found,
    }
}

/// A complaint about what was told to the library as a grammar of ours, without places in that.
pub(super) fn of_ours(found: String) -> String {
    let rest = place(&found).map_or(found.as_str(), |(_, rest)| rest);
    let rest = rest.split_once(" (in regex): ").map_or(rest, |(_, rest)| rest);
    // The library shows the expression again behind what it cannot do.
    let rest = rest.split_once(" in regex /").map_or(rest, |(rest, _)| rest);
    rest.strip_prefix("failed to compile JSON schema: ").unwrap_or(rest).to_string()
}

/// The same about an expression, where the place is one in the expression as somebody wrote it: the library is told of
/// slashes and line ends with a backslash before them.
pub(super) fn of_regex(expression: &str, found: String) -> String {
    let found = of_ours(found);
    let Some((why, Ok(place))) = found.rsplit_once(PLACE).map(|(why, place)| (why, place.parse::<usize>())) else {
        return found;
    };
    let (mut told, mut written, mut is_escaped) = (0, 0, false);
    for character in expression.chars() {
        let is_told_longer = matches!(character, '/' | '\n' | '\r' | '\t') && !is_escaped;
        told += 1 + usize::from(is_told_longer);
        written += 1;
        if told >= place {
            break;
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    format!("{why}{PLACE}{}", if told >= place { written } else { written + 1 })
}

/// A complaint about a schema, whose patterns are told in another syntax: without places in these.
pub(super) fn of_schema(found: String) -> String {
    match found.rsplit_once(PLACE) {
        Some((why, place)) if place.parse::<usize>().is_ok() => why.to_string(),
        _ => found,
    }
}

/// The place with which a complaint begins, and what stands behind it.
fn place(found: &str) -> Option<((usize, usize), &str)> {
    let (line, rest) = found.strip_prefix("at ").unwrap_or(found).split_once('(')?;
    let (column, rest) = rest.split_once("): ")?;
    Some(((line.parse().ok()?, column.parse().ok()?), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_traces_and_advice_are_left_out() {
        let said = "at 1(8): unknown name: \"no\"\n   1 | start: no\n            ^\n<state>\n x";
        assert_eq!(of_grammar(complaint(said)), "at line 1, column 8: unknown name: \"no\"");
        assert_eq!(
            of_grammar(complaint("1(10): lexer error\n   1 | start: \"a\n   ^")),
            "at line 1, column 10: lexer error"
        );
        let said = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf";
        assert_eq!(complaint(said), "oneOf constraints are not supported");
        assert_eq!(complaint("Expected f64 for 'minimum', got \"x\""), "expected f64 for 'minimum', found \"x\"");
        let said = "Parser Error: Current row has 20007 items; max is 2000; consider making your grammar other";
        assert_eq!(complaint(said), "expected at most 2000 items of the parser at a place, found 20007");
        assert_eq!(expected("a form", "no".to_string()), "expected a form, found: no");
        assert_eq!(expected("a form", "expected a, found b".to_string()), "expected a, found b");
    }

    #[test]
    fn places_in_expressions_are_those_of_who_wrote_them() {
        let said = |shown: &str, column: usize| {
            let marks = " ".repeat(INDENTED + column);
            let text = format!(
                "at 1(8): invalid regex {shown:?} (in regex): regex parse error:\n    {shown}\n{marks}^\nerror: \
                 unclosed group\n   1 | start: /{shown}/\n            ^"
            );
            complaint(&text)
        };
        for (written, shown, column, place) in [
            ("(", "(", 0, 1),
            ("a/(b", r"a\/(b", 3, 3),
            (r"a\/(b", r"a\/(b", 3, 4),
            ("/\n(", r"\/\n(", 4, 3),
            ("ab", "ab", 2, 3),
        ] {
            let expected = format!("unclosed group at character {place}");
            assert_eq!(of_regex(written, said(shown, column)), expected, "{written}");
        }
        let said = "at 1(8): invalid regex \"a\\\\b\" (in regex): lookarounds not supported yet; Word in regex /a\\b/";
        assert_eq!(of_regex(r"a\b", said.to_string()), "lookarounds not supported yet; Word");
    }
}
