//! Rewrites the library's error messages for the author of a grammar.
//!
//! The library's messages refer to the grammar that it was given, which is not the user's if the source was translated;
//! they quote lines of it, and give advice on options that users cannot set. Here they become what was expected and
//! what was found, on one line, with a location only if it is one in the user's source.

/// Phrases after which the library gives advice.
const ADVICE: [&str; 4] = ["; consider ", ". Enable '", "; either increase ", " without 'referencing' feature"];

/// The message without traces, quoted lines and advice.
pub(super) fn readable(error: &str) -> String {
    let error = error.split("\n<").next().unwrap_or_default();
    let mut lines: Vec<&str> = Vec::new();
    let mut is_quote = false;
    for line in error.lines() {
        let number = line.trim_start().split_once(" | ").map(|(number, _)| number);
        let is_line = number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
        let is_caret = is_quote && line.trim() == "^";
        is_quote = is_line;
        if !is_line && !is_caret {
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

/// The error in an expression, which the library quotes with a caret under the location: the words around it, the error
/// and the column.
fn of_expression(lines: &[&str]) -> Option<String> {
    let at = lines.iter().position(|line| line.ends_with("regex parse error:"))?;
    let before = lines[at].strip_suffix("regex parse error:")?;
    let why = lines[at..].iter().find_map(|line| line.strip_prefix("error: "))?;
    // Expressions of several lines are quoted in another way.
    let marks = lines.get(at + 2).filter(|marks| marks.trim_start().starts_with('^') && lines.len() == at + 4);
    let place = marks.and_then(|marks| marks.find('^')?.checked_sub(INDENTATION));
    Some(match place {
        Some(place) => format!("{before}{why}{AT_CHARACTER}{}", place + 1),
        None => format!("{before}{why}"),
    })
}

/// How far the library indents a quoted expression.
const INDENTATION: usize = 4;
/// The words before the location in an expression.
const AT_CHARACTER: &str = " at character ";

/// Adds what was expected, unless the message already has it.
pub(super) fn expected(what: &str, found: String) -> String {
    if found.starts_with("expected ") { found } else { format!("expected {what}, found: {found}") }
}

/// An error in a user's grammar, with its location in words.
pub(super) fn locate_in_grammar(found: String) -> String {
    match place(&found) {
        Some(((line, column), rest)) => format!("at line {line}, column {column}: {rest}"),
        None => found,
    }
}

/// An error in a grammar that this crate wrote for the library, without its location.
pub(super) fn without_location(found: String) -> String {
    let rest = place(&found).map_or(found.as_str(), |(_, rest)| rest);
    let rest = rest.split_once(" (in regex): ").map_or(rest, |(_, rest)| rest);
    // The library quotes the expression again.
    let rest = rest.split_once(" in regex /").map_or(rest, |(rest, _)| rest);
    rest.strip_prefix("failed to compile JSON schema: ").unwrap_or(rest).to_string()
}

/// As [`locate_in_grammar`] for an expression, with the location in the user's expression: the library was given
/// slashes and line ends with a backslash before them.
pub(super) fn locate_in_regex(expression: &str, found: String) -> String {
    let found = without_location(found);
    let Some((why, Ok(place))) = found.rsplit_once(AT_CHARACTER).map(|(why, place)| (why, place.parse::<usize>()))
    else {
        return found;
    };
    let (mut library_position, mut user_position, mut is_escaped) = (0, 0, false);
    for character in expression.chars() {
        let is_escaped_for_library = matches!(character, '/' | '\n' | '\r' | '\t') && !is_escaped;
        library_position += 1 + usize::from(is_escaped_for_library);
        user_position += 1;
        if library_position >= place {
            break;
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    format!("{why}{AT_CHARACTER}{}", if library_position >= place { user_position } else { user_position + 1 })
}

/// An error in a schema. Locations in patterns are dropped, since patterns are translated to another syntax.
pub(super) fn without_pattern_location(found: String) -> String {
    match found.rsplit_once(AT_CHARACTER) {
        Some((why, place)) if place.parse::<usize>().is_ok() => why.to_string(),
        _ => found,
    }
}

/// The location with which a message begins, and the rest of it.
fn place(found: &str) -> Option<((usize, usize), &str)> {
    let (line, rest) = found.strip_prefix("at ").unwrap_or(found).split_once('(')?;
    let (column, rest) = rest.split_once("): ")?;
    Some(((line.parse().ok()?, column.parse().ok()?), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_lines_traces_and_advice_are_left_out() {
        let said = "at 1(8): unknown name: \"no\"\n   1 | start: no\n            ^\n<state>\n x";
        assert_eq!(locate_in_grammar(readable(said)), "at line 1, column 8: unknown name: \"no\"");
        assert_eq!(
            locate_in_grammar(readable("1(10): lexer error\n   1 | start: \"a\n   ^")),
            "at line 1, column 10: lexer error"
        );
        let said = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf";
        assert_eq!(readable(said), "oneOf constraints are not supported");
        assert_eq!(readable("Expected f64 for 'minimum', got \"x\""), "expected f64 for 'minimum', found \"x\"");
        let said = "Parser Error: Current row has 20007 items; max is 2000; consider making your grammar other";
        assert_eq!(readable(said), "expected at most 2000 items of the parser at a place, found 20007");
        assert_eq!(expected("a form", "no".to_string()), "expected a form, found: no");
        assert_eq!(expected("a form", "expected a, found b".to_string()), "expected a, found b");
    }

    #[test]
    fn locations_in_expressions_are_those_of_the_user_s_source() {
        let said = |shown: &str, column: usize| {
            let marks = " ".repeat(INDENTATION + column);
            let text = format!(
                "at 1(8): invalid regex {shown:?} (in regex): regex parse error:\n    {shown}\n{marks}^\nerror: \
                 unclosed group\n   1 | start: /{shown}/\n            ^"
            );
            readable(&text)
        };
        for (written, shown, column, place) in [
            ("(", "(", 0, 1),
            ("a/(b", r"a\/(b", 3, 3),
            (r"a\/(b", r"a\/(b", 3, 4),
            ("/\n(", r"\/\n(", 4, 3),
            ("ab", "ab", 2, 3),
        ] {
            let expected = format!("unclosed group at character {place}");
            assert_eq!(locate_in_regex(written, said(shown, column)), expected, "{written}");
        }
        let said = "at 1(8): invalid regex \"a\\\\b\" (in regex): lookarounds not supported yet; Word in regex /a\\b/";
        assert_eq!(locate_in_regex(r"a\b", said.to_string()), "lookarounds not supported yet; Word");
    }
}
