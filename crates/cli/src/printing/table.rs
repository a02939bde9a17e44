//! A table of an answer's tokens, one a line: its pass, its depth in the draft tree, its producer, its probabilities
//! and its text.
//!
//! p is the probability under the target's law, q under the drafter's, if it has one. A further line per drafter
//! compares, over all its guesses, verified or not, how many were expected to be right and how many were. Rejected
//! tokens are not in the table.

use foretoken::report::origins;
use foretoken::{DrafterStats, Emitted, Token, Tokenizer};

/// The table with its header; an empty string without tokens. `names`: the drafters' names, by number.
pub fn table(emitted: &[Emitted], names: &[String], tokenizer: &Tokenizer) -> String {
    lines(emitted, names, &|token| quoted(tokenizer.token_bytes(token)))
}

fn lines(emitted: &[Emitted], names: &[String], quoted: &dyn Fn(Token) -> String) -> String {
    if emitted.is_empty() {
        return String::new();
    }
    let origins = origins(emitted, names);
    let width = origins.iter().map(|name| name.chars().count()).chain(["drafter".len()]).max().unwrap_or(0);
    let mut out = format!("pass  depth  {:<width$}  {:>6}  {:>6}  token\n", "drafter", "p", "q");
    for (emitted, origin) in emitted.iter().zip(origins) {
        let Emitted { pass, depth, p, q, token, .. } = emitted;
        let (p, q) = (number(*p), q.map_or("-".to_string(), |q| number(f64::from(q))));
        out += &format!("{pass:>4}  {depth:>5}  {origin:<width$}  {p:>6}  {q:>6}  {}\n", quoted(*token));
    }
    out
}

/// The reliability of each drafter: for each tenth of the expected probability, how many guesses were right.
pub fn reliability(drafters: &[DrafterStats], names: &[String]) -> String {
    let mut out = String::new();
    for (name, stats) in names.iter().zip(drafters) {
        let tenth = |(expected, right, judged): (f64, usize, usize)| {
            format!("{} %: {right} of {judged}", (100.0 * expected / judged as f64).round())
        };
        let judged = stats.reliability.iter().filter(|tenth| tenth.judged > 0);
        let tenths: Vec<String> = judged.map(|all| tenth((all.expected, all.right, all.judged))).collect();
        if !tenths.is_empty() {
            out += &format!("{name}: guesses right, by how many were expected to be:  {}\n", tenths.join(",  "));
        }
    }
    out
}

/// A probability in at most six characters.
fn number(p: f64) -> String {
    match p {
        0.001.. => format!("{p:.4}"),
        _ if p > 0.0 => format!("{p:.0e}"),
        _ => "0".to_string(),
    }
}

/// Bytes in quotes, as text if they are valid UTF-8, else escaped.
fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken::Origin;

    #[test]
    fn reliability_is_counted_by_tenths() {
        let mut stats = [DrafterStats::default(), DrafterStats::default()];
        for (tenth, judged, expected, right) in [(2, 8, 2.0, 3), (9, 10, 9.5, 9)] {
            let all = &mut stats[1].reliability[tenth];
            (all.judged, all.expected, all.right) = (judged, expected, right);
        }
        let names = ["draft".to_string(), "suffix".to_string()];
        let expected = "suffix: guesses right, by how many were expected to be:  25 %: 3 of 8,  95 %: 9 of 10\n";
        assert_eq!(reliability(&stats, &names), expected);
    }

    #[test]
    fn columns_are_aligned_and_line_breaks_escaped() {
        let emitted = |token, origin, depth, pass, p, q| Emitted {
            token,
            origin,
            depth,
            pass,
            p,
            q,
            log_probability: None,
            top: Vec::new(),
            text: String::new(),
        };
        let emitted = [
            emitted(0, Origin::Target, 0, 1, 0.25, None),
            emitted(1, Origin::Drafted(0), 1, 2, 1.0, Some(0.5)),
            emitted(2, Origin::Drafted(1), 2, 1000, 0.000_012, None),
        ];
        let words = [&b" a"[..], "\u{e9}\n".as_bytes(), b"\xc3\""];
        let names = ["draft".to_string(), "draft:lookup".to_string()];
        let expected = "\
pass  depth  drafter            p       q  token
   1      0  target        0.2500       -  \" a\"
   2      1  draft         1.0000  0.5000  \"\u{e9}\\n\"
1000      2  draft:lookup    1e-5       -  \"\\xc3\\\"\"
";
        assert_eq!(lines(&emitted, &names, &|token| quoted(words[token as usize])), expected);
        assert_eq!(lines(&[], &names, &|_| String::new()), "");
        assert_eq!((number(0.0), number(1e-10)), ("0".to_string(), "1e-10".to_string()));
    }
}
