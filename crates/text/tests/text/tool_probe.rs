//! Properties of parsing any answer: no byte is lost or added, the pieces do not matter, calls are complete, and
//! nothing panics. Shared by the fuzz target and the property tests.

use foretoken_text::{AnswerPiece, ToolCall, ToolCallReader, ToolFormat};

/// A parsed answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Texts and calls in order; adjacent ones of a kind are joined.
    pub pieces: Vec<AnswerPiece>,
}

impl Answer {
    /// Parses an answer in these pieces, and then again, since `finish` resets the reader.
    pub fn read<'a>(reader: &mut ToolCallReader, pieces: impl Iterator<Item = &'a str>) -> Self {
        let mut answer = Self::default();
        for piece in pieces {
            reader.push(piece).into_iter().for_each(|piece| answer.add(piece));
        }
        reader.finish().into_iter().for_each(|piece| answer.add(piece));
        answer
    }

    fn add(&mut self, piece: AnswerPiece) {
        match (self.pieces.last_mut(), piece) {
            (Some(AnswerPiece::Text(before)), AnswerPiece::Text(text)) => before.push_str(&text),
            (Some(AnswerPiece::Calls { calls: before, written: all }), AnswerPiece::Calls { calls, written }) => {
                before.extend(calls);
                all.push_str(&written);
            }
            (_, piece) => self.pieces.push(piece),
        }
    }

    /// All calls.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.pieces.iter().flat_map(|piece| match piece {
            AnswerPiece::Calls { calls, .. } => calls.as_slice(),
            AnswerPiece::Text(_) => &[],
        })
    }

    /// All text outside calls.
    #[allow(dead_code)] // the tests'
    pub fn text(&self) -> String {
        let text = |piece: &AnswerPiece| match piece {
            AnswerPiece::Text(text) => text.clone(),
            AnswerPiece::Calls { .. } => String::new(),
        };
        self.pieces.iter().map(text).collect()
    }

    /// The whole answer.
    pub fn written(&self) -> String {
        let written = |piece: &AnswerPiece| match piece {
            AnswerPiece::Text(written) | AnswerPiece::Calls { written, .. } => written.clone(),
        };
        self.pieces.iter().map(written).collect()
    }
}

/// Splits a text into pieces of these lengths in bytes, repeated, at character boundaries.
pub fn split<'a>(text: &'a str, lengths: &'a [u8]) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    let mut lengths = lengths.iter().map(|&len| usize::from(len).max(1)).cycle();
    std::iter::from_fn(move || {
        let len = rest.ceil_char_boundary(lengths.next().unwrap_or(rest.len()).min(rest.len()));
        let (piece, after) = rest.split_at(len);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Parses a text at once and in pieces, and checks the properties.
pub fn check(format: ToolFormat, text: &str, lengths: &[u8]) -> Answer {
    let mut reader = ToolCallReader::new(format, &[]);
    let answer = Answer::read(&mut reader, std::iter::once(text));
    assert_eq!(answer.written(), text, "{format:?}: bytes were lost or added");
    assert_eq!(Answer::read(&mut reader, split(text, lengths)), answer, "{format:?}: {text:?} in {lengths:?}");
    for call in answer.calls() {
        assert!(!call.name.is_empty(), "{format:?}: {text:?}");
        let is_object = call.arguments.starts_with('{') && call.arguments.ends_with('}');
        let is_json = serde_json::from_str::<&serde_json::value::RawValue>(&call.arguments).is_ok();
        assert!(is_object && is_json, "{format:?}: {call:?}");
    }
    answer
}

/// Any bytes: the first selects the format, the second the lengths of the pieces, and the others are the text.
#[allow(dead_code)] // the fuzz target's
pub fn tool_calls(data: &[u8]) {
    let [form, length, text @ ..] = data else { return };
    let format = ToolFormat::ALL[usize::from(*form) % ToolFormat::ALL.len()];
    check(format, &String::from_utf8_lossy(text), &[*length % 16, *length / 16]);
}
