//! Records: prompts with a model's answers, in the formats of several data sets.
//!
//! A file has a list of objects, or one object on each line. An object is one or more records, in the first of these
//! formats that it has:
//!
//! - token ids: `prompt_ids` with `ids`, as `foretoken generate --json` prints them;
//! - `prompt` or `question` with `output`, `completion` or `answer`, texts or token ids;
//! - `prompt` with `response_mistral7b` (prompt-lookup-decoding's recordings of CNN/DM, HAGRID and MT-bench): the
//!   greedy answers, one record for each turn; a later turn continues the conversation;
//! - `query`, `docs` and `result` (LLMA's questions with retrieved documents).
//!
//! Prompt and answer are tokenized separately, so no token spans both; no end token is added. Sampled answers and their
//! times are ignored.

use std::path::Path;

use flate2::read::MultiGzDecoder;
use foretoken::whole::TEXT_BYTES_MAX;
use foretoken::{Token, Tokenizer, whole};
use serde_json::Value;

use crate::failure::Failure;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A prompt and its answer, as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// All tokens.
    pub tokens: Vec<Token>,
    /// How many of them are the prompt; at least one, and fewer than all.
    pub prompt_len: usize,
    /// Whether it is a later turn of the previous record's conversation.
    pub continues_conversation: bool,
}

/// A part of a record before it is tokenized.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordPart {
    /// A text.
    Text(String),
    /// Token ids as they are.
    Ids(Vec<Token>),
}

/// Reads at most `limit` records.
///
/// # Errors
/// The file cannot be read, or a record of it cannot be used; the error has the record's number, from 1.
pub fn read(path: &Path, tokenizer: &Tokenizer, limit: Option<usize>) -> Result<Vec<Record>, Failure> {
    let place = path.display().to_string();
    let text = read_text(path)?;
    let limit = limit.unwrap_or(usize::MAX);
    let mut records = Vec::new();
    for (i, object) in objects(&place, &text)?.into_iter().enumerate() {
        if records.len() >= limit {
            break;
        }
        let place = format!("{place}: record {}", i + 1);
        records.extend(of_object(&place, &parsed(&place, object)?, tokenizer)?);
    }
    records.truncate(limit);
    match records.is_empty() {
        true => Err(Failure::Other(format!("{place}: expected records, found none"))),
        false => Ok(records),
    }
}

/// The text of a file that a user names, which may be a pipe.
///
/// # Errors
/// It cannot be read or unpacked, is larger than the limit for texts, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = whole::read_stream(path, TEXT_BYTES_MAX).map_err(|error| Failure::file(path, &error))?;
    utf8(&path.display().to_string(), unpacked(path, bytes)?)
}

/// The bytes of a file, unpacked if they are gzip's.
fn unpacked(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes);
    }
    let unpacked = whole::read_all(MultiGzDecoder::new(&bytes[..]), TEXT_BYTES_MAX);
    unpacked.map_err(|error| {
        let path = path.display();
        Failure::Other(format!("{path}: expected gzip's format behind its first two bytes, found: {error}"))
    })
}

/// The bytes as text. `place` names them in messages.
///
/// # Errors
/// They are not UTF-8.
pub fn utf8(place: &str, mut bytes: Vec<u8>) -> Result<String, Failure> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        Failure::Other(format!("{place}: expected UTF-8, found another byte at {at} (line {line})"))
    })
}

/// What some editors write before a text in UTF-8, and what is no part of it.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The result of parsing JSON.
pub type Parsed = Result<Value, serde_json::Error>;

/// The objects of a file: a list, or one on each line.
///
/// # Errors
/// The text starts with a bracket and is not a list.
pub fn objects(place: &str, text: &str) -> Result<Vec<Parsed>, Failure> {
    if text.trim_start().starts_with('[') {
        return match serde_json::from_str(text) {
            Ok(Value::Array(all)) => Ok(all.into_iter().map(Ok).collect()),
            Ok(_) => unreachable!("{place}: a document that starts with a bracket is a list"),
            Err(error) => Err(Failure::Other(format!("{place}: expected a list of records, found: {error}"))),
        };
    }
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect())
}

/// The parsed JSON.
///
/// # Errors
/// The text is not JSON.
pub fn parsed(place: &str, object: Parsed) -> Result<Value, Failure> {
    object.map_err(|error| Failure::Other(format!("{place}: expected JSON, found: {error}")))
}

/// The records of one object. `place` names it in messages.
///
/// # Errors
/// A field is missing or cannot be used.
pub fn of_object(place: &str, object: &Value, tokenizer: &Tokenizer) -> Result<Vec<Record>, Failure> {
    let turns = parts(place, object)?.into_iter().enumerate();
    let record = |(turn, (prompt, output))| {
        Ok(Record { continues_conversation: turn > 0, ..record(place, prompt, output, tokenizer)? })
    };
    turns.map(record).collect()
}

/// Prompts and answers of one object. `place` names it in messages.
///
/// # Errors
/// A field is missing or has the wrong type.
pub fn parts(place: &str, object: &Value) -> Result<Vec<(RecordPart, RecordPart)>, Failure> {
    if !object.is_object() {
        return Err(wrong(place, "record", "an object", Some(object)));
    }
    if object.get("prompt_ids").is_some() {
        return Ok(vec![(part(place, object, &["prompt_ids"])?, part(place, object, &["ids"])?)]);
    }
    if object.get("response_mistral7b").is_some() {
        return recorded_turns(place, object);
    }
    if object.get("docs").is_some() {
        return Ok(vec![question_with_documents(place, object)?]);
    }
    Ok(vec![(part(place, object, &["prompt", "question"])?, part(place, object, &["output", "completion", "answer"])?)])
}

/// The first of these fields that exists.
///
/// # Errors
/// None exists, or the field is neither a text nor token ids.
pub fn part(place: &str, object: &Value, fields: &[&str]) -> Result<RecordPart, Failure> {
    let found = fields.iter().find_map(|field| object.get(field).filter(|value| !value.is_null()));
    let id = |value: &Value| value.as_u64().and_then(|id| Token::try_from(id).ok());
    let part = match found {
        Some(Value::String(text)) => Some(RecordPart::Text(text.clone())),
        Some(Value::Array(ids)) => ids.iter().map(id).collect::<Option<_>>().map(RecordPart::Ids),
        _ => None,
    };
    part.ok_or_else(|| wrong(place, &either(fields), "a text or token ids", found))
}

/// "a, b or c".
fn either(fields: &[&str]) -> String {
    match fields {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => fields.concat(),
    }
}

fn text<'a>(place: &str, object: &'a Value, field: &str) -> Result<&'a str, Failure> {
    let found = object.get(field);
    found.and_then(Value::as_str).ok_or_else(|| wrong(place, field, "a text", found))
}

/// The greedy answers, each with its prompt, which in a conversation begins with all turns before.
fn recorded_turns(place: &str, object: &Value) -> Result<Vec<(RecordPart, RecordPart)>, Failure> {
    let field = "response_mistral7b";
    let answers = object.get(field);
    let list = answers.and_then(Value::as_array).ok_or_else(|| wrong(place, field, "a list of answers", answers))?;
    let greedy = list.iter().filter(|answer| answer.get("gen_func").and_then(Value::as_str) == Some("greedy"));
    let mut turns = Vec::new();
    let mut before = String::new();
    for (turn, answer) in greedy.enumerate() {
        let prompt = match object.get("prompt") {
            Some(Value::String(prompt)) => prompt.clone(),
            Some(Value::Array(questions)) => match questions.get(turn) {
                // The turns of a conversation, in the chat format of the model that answered (Mistral 7B Instruct).
                Some(Value::String(question)) => format!("{before}[INST] {question} [/INST]"),
                found => return Err(wrong(place, &format!("prompt: turn {}", turn + 1), "a text", found)),
            },
            found => return Err(wrong(place, "prompt", "a text or a list of texts", found)),
        };
        let answer = text(place, answer, "response_text")?;
        before = format!("{prompt}{answer}</s>");
        turns.push((RecordPart::Text(prompt), RecordPart::Text(answer.to_string())));
    }
    match turns.is_empty() {
        true => Err(Failure::Other(format!("{place}: {field}: expected a greedy answer, found none"))),
        false => Ok(turns),
    }
}

/// The documents with the question as prompt, and the answer.
fn question_with_documents(place: &str, object: &Value) -> Result<(RecordPart, RecordPart), Failure> {
    let found = object.get("docs");
    let texts = found.and_then(Value::as_array).and_then(|docs| docs.iter().map(Value::as_str).collect());
    let docs: Vec<&str> = texts.ok_or_else(|| wrong(place, "docs", "a list of texts", found))?;
    let question = text(place, object, "query")?;
    let result = object.get("result").ok_or_else(|| wrong(place, "result", "an object", None))?;
    let prompt = format!("{}\n\nQuestion: {question}\nAnswer:", docs.join("\n"));
    Ok((RecordPart::Text(prompt), RecordPart::Text(text(&format!("{place}: result"), result, "text")?.to_string())))
}

/// The tokens of one prompt and its answer.
fn record(place: &str, prompt: RecordPart, output: RecordPart, tokenizer: &Tokenizer) -> Result<Record, Failure> {
    let ids = |part, special| match part {
        RecordPart::Text(text) => tokenizer.encode_in_pieces(&text, special),
        RecordPart::Ids(ids) => Ok(ids),
    };
    let mut tokens = ids(prompt, true)?;
    let prompt_len = tokens.len();
    tokens.extend(ids(output, false)?);
    let len = tokenizer.vocabulary_len();
    let wrong = |what: &str, expected: String, found: String| {
        Err(Failure::Other(format!("{place}: {what}: expected {expected}, found {found}")))
    };
    if prompt_len == 0 {
        return wrong("prompt", "at least one token".into(), "none".into());
    }
    if prompt_len == tokens.len() {
        return wrong("output", "at least one token".into(), "none".into());
    }
    match tokens.iter().find(|token| **token as usize >= len) {
        Some(token) => wrong("token", format!("a number below {len} (the vocabulary)"), token.to_string()),
        None => Ok(Record { tokens, prompt_len, continues_conversation: false }),
    }
}

fn wrong(place: &str, field: &str, expected: &str, found: Option<&Value>) -> Failure {
    let found = match found {
        None | Some(Value::Null) => "none",
        Some(Value::Bool(_)) => "true or false",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a text",
        Some(Value::Array(_)) => "a list of something else",
        Some(Value::Object(_)) => "an object",
    };
    Failure::Other(format!("{place}: {field}: expected {expected}, found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        let text = |bytes: &[u8]| utf8("x", bytes.to_vec()).map_err(|failure| failure.message().unwrap_or_default());
        assert_eq!(text(b"\xef\xbb\xbf{}"), Ok("{}".to_string()));
        assert_eq!(text(b"\xef\xbb{}"), Err("x: expected UTF-8, found another byte at 0 (line 1)".to_string()));
    }
}
