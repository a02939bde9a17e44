//! What must hold for whatever a model writes: no byte is lost or invented, its pieces do not matter, calls are whole,
//! and nothing panics. The fuzz target and the property tests call the same function.

use foretoken_text::{AnswerPiece, ToolCall, ToolCallReader, ToolFormat};

/// An answer, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Texts and calls in their order; neighbours of a kind are one.
    pub pieces: Vec<AnswerPiece>,
}

impl Answer {
    /// Reads an answer that arrives in these pieces, and then again, since a reader begins anew behind an end.
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

    /// All text that is part of no call.
    #[allow(dead_code)] // the tests'
    pub fn text(&self) -> String {
        let text = |piece: &AnswerPiece| match piece {
            AnswerPiece::Text(text) => text.clone(),
            AnswerPiece::Calls { .. } => String::new(),
        };
        self.pieces.iter().map(text).collect()
    }

    /// What was written.
    pub fn written(&self) -> String {
        let written = |piece: &AnswerPiece| match piece {
            AnswerPiece::Text(written) | AnswerPiece::Calls { written, .. } => written.clone(),
        };
        self.pieces.iter().map(written).collect()
    }
}

/// A text in pieces of these lengths in bytes, which go round; a piece ends with a character.
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

/// Reads a text at once and in pieces, and checks what must hold.
pub fn check(format: ToolFormat, text: &str, lengths: &[u8]) -> Answer {
    let mut reader = ToolCallReader::new(format, &[]);
    let answer = Answer::read(&mut reader, std::iter::once(text));
    assert_eq!(answer.written(), text, "{format:?}: bytes were lost or invented");
    assert_eq!(Answer::read(&mut reader, split(text, lengths)), answer, "{format:?}: {text:?} in {lengths:?}");
    for call in answer.calls() {
        assert!(!call.name.is_empty(), "{format:?}: {text:?}");
        let is_object = call.arguments.starts_with('{') && call.arguments.ends_with('}');
        let is_json = serde_json::from_str::<&serde_json::value::RawValue>(&call.arguments).is_ok();
        assert!(is_object && is_json, "{format:?}: {call:?}");
    }
    answer
}

/// Any bytes: the first says the form, the second the lengths of the pieces, and the others are the text.
#[allow(dead_code)] // the fuzz target's
pub fn tool_calls(data: &[u8]) {
    let [form, length, text @ ..] = data else { return };
    let format = ToolFormat::ALL[usize::from(*form) % ToolFormat::ALL.len()];
    check(format, &String::from_utf8_lossy(text), &[*length % 16, *length / 16]);
}
