//! llama.cpp's own grammar tests and example grammars, in a checkout that `FORETOKEN_LLAMA_CPP` names.
//!
//! The cases are calls in a C++ file with literals: a description, a grammar or a schema, strings that match and
//! strings that do not. Calls with other arguments (tokens by number) are skipped and counted. Schemas are compiled
//! unchanged, with whitespace. Known differences are listed with their reason.

use std::path::Path;

use foretoken_text::{Grammar, GrammarSource};

use crate::TARGET;
use crate::walks::matches;

/// Strings of cases with a different result, and why. One that no longer differs fails the test.
const KNOWN: &[(&str, &str)] = &[
    ("min 0: 100000000000000000000000000000000", "whole numbers have as many digits as one likes"),
    ("min 2: 12345678900000000", "whole numbers have as many digits as one likes"),
    ("min+max items: 1", "without a type, items are of lists alone"),
    (
        "object properties: { \"number\": 1600, \"street_name\": \"Pennsylvania\", \"street_type\":\"Avenue\", \
         \"direction\":\"NW\"}",
        "other properties may follow, unless the schema says that there are none",
    ),
];
/// Cases that are refused, and why.
const REFUSED: &[(&str, &str)] = &[("required props", "uniqueItems, which is ignored there")];

/// A call of the file.
struct Case {
    is_schema: bool,
    name: String,
    form: String,
    passing: Vec<String>,
    failing: Vec<String>,
}

/// Reads literals and punctuation of C++.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix("//") {
                Some(comment) => self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => return,
            }
        }
    }

    fn eat(&mut self, sign: &str) -> Option<()> {
        self.space();
        self.rest = self.rest.strip_prefix(sign)?;
        Some(())
    }

    /// A literal; adjacent literals are concatenated.
    fn literal(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut is_one = false;
        loop {
            self.space();
            if let Some(raw) = self.rest.strip_prefix("R\"") {
                let (mark, raw) = raw.split_once('(')?;
                let (body, rest) = raw.split_once(&format!("){mark}\""))?;
                text.push_str(body);
                self.rest = rest;
            } else if self.rest.starts_with('"') {
                text.push_str(&self.quoted()?);
            } else {
                return is_one.then_some(text);
            }
            is_one = true;
        }
    }

    fn quoted(&mut self) -> Option<String> {
        let (mut text, mut characters) = (String::new(), self.rest[1..].char_indices());
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &self.rest[at + 2..];
                    return Some(text);
                }
                '\\' => text.push(match characters.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    sign @ ('\\' | '"' | '\'') => sign,
                    _ => return None,
                }),
                _ => text.push(character),
            }
        }
        None
    }

    /// Literals in braces.
    fn list(&mut self) -> Option<Vec<String>> {
        self.eat("{")?;
        let mut all = Vec::new();
        while self.eat("}").is_none() {
            all.push(self.literal()?);
            if self.eat(",").is_none() {
                self.eat("}")?;
                break;
            }
        }
        Some(all)
    }

    fn case(&mut self, is_schema: bool) -> Option<Case> {
        let name = self.literal()?;
        self.eat(",")?;
        let form = self.literal()?;
        self.eat(",")?;
        let passing = self.list()?;
        self.eat(",")?;
        let failing = self.list()?;
        self.eat(")")?;
        Some(Case { is_schema, name, form, passing, failing })
    }
}

/// The calls of a file, and how many have other arguments than literals.
fn cases(text: &str) -> (Vec<Case>, usize) {
    let (mut all, mut left_out, mut rest) = (Vec::new(), 0, text);
    while let Some((at, call)) =
        ["test_grammar(", "test_schema("].into_iter().filter_map(|call| rest.find(call).map(|at| (at, call))).min()
    {
        let is_definition = rest[..at].ends_with("static void ");
        rest = &rest[at + call.len()..];
        if is_definition {
            continue;
        }
        match (Reader { rest }).case(call == "test_schema(") {
            Some(case) => all.push(case),
            None => left_out += 1,
        }
    }
    (all, left_out)
}

#[test]
fn grammars_of_llama_cpp_match_its_strings_and_no_others() {
    let Some(checkout) = std::env::var_os("FORETOKEN_LLAMA_CPP") else {
        println!("skipped: cases are looked for in FORETOKEN_LLAMA_CPP, which is not set");
        return;
    };
    let checkout = Path::new(&checkout);
    let text = std::fs::read_to_string(checkout.join("tests/test-grammar-integration.cpp")).expect("a file of tests");
    let (cases, left_out) = cases(&text);
    let (mut known, mut refused) = (KNOWN.to_vec(), REFUSED.to_vec());
    let (mut new, mut strings) = (Vec::new(), 0);
    for case in &cases {
        let source = match case.is_schema {
            true => GrammarSource::JsonSchema { schema: case.form.clone(), flexible: true },
            false => GrammarSource::Gbnf(case.form.clone()),
        };
        let grammar = match Grammar::compile(&TARGET, &source) {
            Ok(grammar) => grammar,
            Err(error) => {
                let place = refused.iter().position(|(name, _)| *name == case.name);
                match place {
                    Some(place) => drop(refused.remove(place)),
                    None => new.push(format!("{}: {error}", case.name)),
                }
                continue;
            }
        };
        let all = case.passing.iter().map(|text| (text, true)).chain(case.failing.iter().map(|text| (text, false)));
        for (text, passes) in all {
            strings += 1;
            if matches(&grammar, text) != passes {
                let what = format!("{}: {text}", case.name);
                match known.iter().position(|(known, _)| *known == what) {
                    Some(place) => drop(known.remove(place)),
                    None => new.push(format!("{what} (passes there: {passes})")),
                }
            }
        }
    }
    println!("{} cases with {strings} strings, {left_out} left out", cases.len());
    assert!(new.is_empty(), "{} differences that are not known:\n{}", new.len(), new.join("\n"));
    assert!(known.is_empty() && refused.is_empty(), "no difference any more: {known:?} {refused:?}");
    assert!(strings > 100, "expected a file of cases, found {strings} strings");
    let examples = std::fs::read_dir(checkout.join("grammars")).expect("a folder of examples");
    let examples = examples.map(|entry| entry.expect("a readable folder").path());
    let mut count = 0;
    for path in examples.filter(|path| path.extension().is_some_and(|extension| extension == "gbnf")) {
        let text = std::fs::read_to_string(&path).expect("an example can be read");
        let grammar = Grammar::compile(&TARGET, &GrammarSource::of_grammar(text));
        grammar.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        count += 1;
    }
    assert!(count > 5, "expected examples, found {count}");
}
