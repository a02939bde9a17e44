//! Stop strings: the text ends where one of them would begin.
//!
//! The text arrives in pieces, and a stop string can begin in one and end in another, so a tail that may still become a
//! stop string is held back. The result depends on the text alone, not on how it is cut into pieces: generation stops
//! where the first stop string is complete. If several end at the same place, the longest counts, and the text is cut
//! where that one begins. So one token at a time and eight at a time give the same text.
//!
//! Stop *tokens* are compared by the engine. The search is naive: a few short strings over a few new bytes per token,
//! so an automaton would cost more to build than it saves.

/// What [`StopMatcher::push`] returns: the text that may be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text to release now. Released text is never taken back.
    pub text: String,
    /// A stop string is complete: nothing more will be released.
    pub stopped: bool,
}

/// Finds stop strings in text that arrives in pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may still be the beginning of a stop string.
    held: String,
    /// Index of the stop string that was found.
    found: Option<usize>,
}

impl StopMatcher {
    /// Makes a matcher for these strings. Empty strings are ignored: they would stop everything at once.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new(), found: None }
    }

    /// Adds a piece of text and says what may be shown. After a stop, every further push releases nothing.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.found.is_some() {
            return StopOutput { text: String::new(), stopped: true };
        }
        self.held.push_str(piece);
        let released = match self.first_match(&self.held) {
            Some((start, stop)) => {
                self.found = Some(stop);
                self.held.truncate(start);
                start
            }
            None => self.held.len() - self.open_tail(&self.held),
        };
        StopOutput { text: self.held.drain(..released).collect(), stopped: self.found.is_some() }
    }

    /// The text still held back, for when generation ends without a stop string. Empty after a stop.
    pub fn finish(&self) -> &str {
        &self.held
    }

    /// The stop string that ended the text, if one did.
    pub fn matched(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Start and index of the stop string that is complete first; of several that end together, the longest.
    fn first_match(&self, held: &str) -> Option<(usize, usize)> {
        let ends = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| held.find(stop.as_str()).map(|start| (start + stop.len(), start, index)));
        ends.min().map(|(_, start, index)| (start, index))
    }

    /// Length of the longest tail that is the beginning of a stop string.
    fn open_tail(&self, held: &str) -> usize {
        let longest = |stop: &String| {
            let most = held.len().min(stop.len() - 1);
            (1..=most).rev().find(|&len| held.as_bytes()[held.len() - len..] == stop.as_bytes()[..len])
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut text = String::new();
        for piece in pieces {
            text.push_str(&matcher.push(piece).text);
        }
        text.push_str(matcher.finish());
        (text, matcher.matched().is_some())
    }

    #[test]
    fn tails_that_might_become_a_stop_are_held_back() {
        let mut matcher = StopMatcher::new(vec!["###".into(), "".into()]);
        assert_eq!(matcher.push("a#"), StopOutput { text: "a".into(), stopped: false });
        assert_eq!(matcher.push("#"), StopOutput { text: "".into(), stopped: false });
        assert_eq!(matcher.push("b"), StopOutput { text: "##b".into(), stopped: false });
        assert_eq!(matcher.push("c##"), StopOutput { text: "c".into(), stopped: false });
        assert_eq!(matcher.finish(), "##");
        assert_eq!(matcher.push("#d"), StopOutput { text: "".into(), stopped: true });
        assert_eq!((matcher.finish(), matcher.matched()), ("", Some("###")));
        assert_eq!(matcher.push("e"), StopOutput { text: "".into(), stopped: true });
    }

    #[test]
    fn the_result_does_not_depend_on_the_pieces() {
        let cases: &[(&[&str], &str, &str)] = &[
            (&["ab"], "xxabyy", "xx"),
            (&["aab"], "aaaab", "aa"),
            (&["abcd", "bc"], "abcd", "a"),
            (&["abc", "bc", "c"], "xabc", "x"),
            (&["abab", "babc"], "ababc", ""),
            (&["ä"], "aäb", "a"),
            (&["äö", "öä"], "xöäö", "x"),
            (&["never"], "neve", "neve"),
            (&[], "text", "text"),
        ];
        for (stops, text, expected) in cases {
            let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            for &first in &starts {
                for &second in starts.iter().filter(|&&second| second >= first) {
                    let (found, _) = run(stops, &[&text[..first], &text[first..second], &text[second..]]);
                    assert_eq!(&found, expected, "{stops:?} in {text:?} cut at {first} and {second}");
                }
            }
        }
    }
}
