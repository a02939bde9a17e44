//! The fields of a request's body, which are taken one by one, each with its full name for errors.
//!
//! A body is parsed into an object whose values stay text until they are taken by name and type. So each error names
//! the field, the expected and the found value; fields that are never taken are unknown. A field that is null counts as
//! absent.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{ApiError, shown};

/// The fields of an object that were not yet taken.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    /// Names of the enclosing objects, each followed by a dot.
    prefix: String,
    fields: BTreeMap<String, Box<RawValue>>,
    /// The names of renamed fields as the client sent them.
    sent_names: BTreeMap<String, String>,
}

/// An object as it was sent, including duplicate names.
struct Pairs(Vec<(String, Box<RawValue>)>);

impl<'a> Deserialize<'a> for Pairs {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'a> Visitor<'a> for Reader {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// What any value must be to be parsed: JSON itself allows deeper nesting and larger numbers.
pub(crate) const READABLE: &str = "JSON that is not nested too deeply, with numbers below 1e308";

impl Fields {
    /// The fields of a request's body.
    ///
    /// # Errors
    /// The body is not an object, or has a duplicate name.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::bad(format!("body: expected UTF-8, found something else behind byte {}", error.valid_up_to()))
        })?;
        let pairs = serde_json::from_str(text).map_err(|error| {
            let found = if text.trim().is_empty() { "none".to_string() } else { shown(&error.to_string()) };
            ApiError::bad(format!("body: expected a JSON object, found {found}"))
        })?;
        Self::new(String::new(), pairs)
    }

    fn new(prefix: String, Pairs(pairs): Pairs) -> Result<Self, ApiError> {
        let mut fields = BTreeMap::new();
        for (name, value) in pairs {
            let full_name = format!("{prefix}{name}");
            if fields.insert(name, value).is_some() {
                return Err(ApiError::field(&full_name, "expected once, found twice"));
            }
        }
        Ok(Self { prefix, fields, sent_names: BTreeMap::new() })
    }

    /// The name of a field as it was sent, with those of the enclosing objects.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{}", self.prefix, self.sent_names.get(name).map_or(name, String::as_str))
    }

    /// An error in a renamed field, with the field's name as it was sent.
    pub(crate) fn with_sent_name(&self, error: ApiError) -> ApiError {
        match error.param.as_deref().and_then(|param| self.sent_names.get(param)) {
            Some(sent_name) => error.with_field(&format!("{}{sent_name}", self.prefix)),
            None => error,
        }
    }

    /// Takes the JSON text of a field.
    pub(crate) fn raw(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.fields.remove(name).filter(|value| value.get() != "null")
    }

    /// Takes a field of type `T`, which `expected` describes.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let wrong = |_| ApiError::field(&self.name(name), format!("expected {expected}, found {}", shown(raw.get())));
        serde_json::from_str(raw.get()).map(Some).map_err(wrong)
    }

    /// Takes a field of any type.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        self.take(name, READABLE)
    }

    /// The value of a field of any type, which is not taken.
    pub(crate) fn peek(&mut self, name: &str) -> Result<Option<Value>, ApiError> {
        let raw = self.fields.get(name).cloned();
        let value = self.value(name)?;
        self.fields.extend(raw.map(|raw| (name.to_string(), raw)));
        Ok(value)
    }

    /// Takes a string.
    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take(name, "a string")
    }

    /// Takes a string that must be present.
    pub(crate) fn required_string(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| ApiError::field(&self.name(name), "expected a string, found none"))
    }

    /// Whether the field is present, not yet taken, and a string.
    pub(crate) fn has_string(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| value.get().starts_with('"'))
    }

    /// Takes a boolean.
    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take(name, "true or false")
    }

    /// Takes a number from `least` to `most`.
    pub(crate) fn number(&mut self, name: &str, least: f32, most: f32) -> Result<Option<f32>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let found: Option<f32> = serde_json::from_str::<f64>(raw.get()).ok().map(|number| number as f32);
        let range = match (least, most) {
            (f32::MIN, f32::MAX) => "a finite number".to_string(),
            (least, f32::MAX) => format!("a number from {least} up"),
            (least, most) => format!("a number from {least} to {most}"),
        };
        match found.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(ApiError::field(&self.name(name), format!("expected {range}, found {}", shown(raw.get())))),
        }
    }

    /// Takes a whole number from `least` to `most`. It may have a decimal point (`16.0`).
    pub(crate) fn integer(&mut self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let without_point = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
        let found = serde_json::from_str::<i64>(raw.get()).ok();
        let found = found.or_else(|| serde_json::from_str(raw.get()).ok().and_then(without_point));
        let range = match most {
            i64::MAX => format!("a whole number from {least} up"),
            most => format!("a whole number from {least} to {most}"),
        };
        match found.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(ApiError::field(&self.name(name), format!("expected {range}, found {}", shown(raw.get())))),
        }
    }

    /// Takes a count: a whole number from `least` to `most`.
    pub(crate) fn count(&mut self, name: &str, least: usize, most: usize) -> Result<Option<usize>, ApiError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let found = self.integer(name, i64::try_from(least).unwrap_or(i64::MAX), most)?;
        Ok(found.and_then(|number| usize::try_from(number).ok()))
    }

    /// Takes a string or a list of strings.
    pub(crate) fn strings(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Strings {
            One(String),
            Many(Vec<String>),
        }
        Ok(match self.take(name, "a string or a list of strings")? {
            None => Vec::new(),
            Some(Strings::One(string)) => vec![string],
            Some(Strings::Many(strings)) => strings,
        })
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let prefix = format!("{}.", self.name(name));
        match serde_json::from_str(raw.get()) {
            Ok(pairs) => Self::new(prefix, pairs).map(Some),
            Err(_) => Err(ApiError::field(
                prefix.trim_end_matches('.'),
                format!("expected an object, found {}", shown(raw.get())),
            )),
        }
    }

    /// Takes the JSON text of an object, which keeps the order of its names.
    pub(crate) fn raw_object(&mut self, name: &str) -> Result<Option<Box<RawValue>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        if serde_json::from_str::<Map<String, Value>>(raw.get()).is_err() {
            let found = shown(raw.get());
            return Err(ApiError::field(&self.name(name), format!("expected an object of {READABLE}, found {found}")));
        }
        Ok(Some(raw))
    }

    /// Takes a list of objects, whose errors have their index in the list.
    pub(crate) fn objects(&mut self, name: &str) -> Result<Option<Vec<Fields>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let list_name = self.name(name);
        let wrong = |name: &str, expected: &str, raw: &RawValue| {
            ApiError::field(name, format!("expected {expected}, found {}", shown(raw.get())))
        };
        let list: Vec<Box<RawValue>> =
            serde_json::from_str(raw.get()).map_err(|_| wrong(&list_name, "a list of objects", &raw))?;
        let object = |(index, raw): (usize, &RawValue)| {
            let name = format!("{list_name}[{index}]");
            let pairs = serde_json::from_str(raw.get()).map_err(|_| wrong(&name, "an object", raw))?;
            Self::new(format!("{name}."), pairs)
        };
        list.iter().map(Box::as_ref).enumerate().map(object).collect::<Result<_, _>>().map(Some)
    }

    /// Bytes of a field's JSON text.
    pub(crate) fn byte_len(&self, name: &str) -> usize {
        self.fields.get(name).map_or(0, |value| value.get().len())
    }

    /// Whether the field is present and not yet taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| value.get() != "null")
    }

    /// Renames a field that other programs call differently, if it is present.
    ///
    /// # Errors
    /// The field is present under both names.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), ApiError> {
        let Some(value) = self.raw(from) else { return Ok(()) };
        if self.has(to) {
            let other = self.name(to);
            return Err(ApiError::field(&self.name(from), format!("expected it or {other}, found both")));
        }
        self.fields.insert(to.to_string(), value);
        self.sent_names.insert(to.to_string(), from.to_string());
        Ok(())
    }

    /// Inserts a field whose value comes from the field `source`, by whose name errors call it.
    ///
    /// # Errors
    /// The field is already present, under its own name.
    pub(crate) fn insert(&mut self, name: &str, source: &str, value: &impl Serialize) -> Result<(), ApiError> {
        if self.has(name) && name != source {
            let other = self.name(name);
            return Err(ApiError::field(&self.name(source), format!("expected it or {other}, found both")));
        }
        let raw = serde_json::value::to_raw_value(value).expect("values can be written");
        self.fields.insert(name.to_string(), raw);
        if name != source {
            self.sent_names.insert(name.to_string(), source.to_string());
        }
        Ok(())
    }

    /// Moves the fields of a nested object to this one, with the object's name and a dot before their own: `a.b`, as
    /// other clients write them.
    ///
    /// # Errors
    /// A field is present in both forms.
    pub(crate) fn flatten(&mut self, name: &str) -> Result<(), ApiError> {
        let Some(inner) = self.object(name)? else { return Ok(()) };
        for (field, value) in inner.fields {
            let full_name = format!("{name}.{field}");
            if self.fields.insert(full_name.clone(), value).is_some() {
                return Err(ApiError::field(&full_name, "expected once, found twice"));
            }
        }
        Ok(())
    }

    /// All fields that were not taken, in the order of their names.
    pub(crate) fn into_values(self) -> impl Iterator<Item = (String, Box<RawValue>)> {
        self.fields.into_iter()
    }

    /// Refuses fields that were not taken and whose names begin with `prefix`, unless they are null or false.
    pub(crate) fn refuse_others(&self, prefix: &str, expected: &str) -> Result<(), ApiError> {
        let requested = self.fields.iter().map(|(name, value)| (name, value.get()));
        let mut requested =
            requested.filter(|(name, value)| name.starts_with(prefix) && !matches!(*value, "null" | "false"));
        match requested.next() {
            Some((name, value)) => {
                Err(ApiError::unsupported(&self.name(name), format!("expected {expected}, found {}", shown(value))))
            }
            None => Ok(()),
        }
    }

    /// The names of all fields that were not taken.
    pub(crate) fn unknown(&self) -> Vec<String> {
        self.fields.keys().map(|name| self.name(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(body: &str) -> Fields {
        Fields::of_body(body.as_bytes()).expect("an object")
    }

    fn message(error: ApiError) -> String {
        error.message
    }

    #[test]
    fn bodies_other_than_objects_are_refused() {
        for (body, expected) in [
            ("", "body: expected a JSON object, found none"),
            ("[1]", "body: expected a JSON object, found invalid type: sequence, expected an object"),
            ("{\"a\": 1", "body: expected a JSON object, found EOF while parsing"),
            ("{\"a\": 1, \"a\": 2}", "a: expected once, found twice"),
            ("{\"a\": 1} {}", "body: expected a JSON object, found trailing characters"),
        ] {
            let error = Fields::of_body(body.as_bytes()).expect_err(body);
            assert!(error.message.starts_with(expected), "{}", error.message);
        }
        let error = Fields::of_body(b"{\"a\": \"\xff\"}").expect_err("no UTF-8");
        assert_eq!(error.message, "body: expected UTF-8, found something else behind byte 7");
    }

    #[test]
    fn fields_are_taken_by_their_type() {
        let mut all =
            fields(r#"{"n": 16.0, "t": "x", "null": null, "list": ["a", "b"], "x": 0.5, "o": {"p": 1, "q": 2}}"#);
        assert_eq!(all.count("n", 1, 20), Ok(Some(16)));
        assert_eq!(all.count("null", 1, 20), Ok(None));
        assert_eq!(all.number("x", 0.0, 1.0), Ok(Some(0.5)));
        assert_eq!(all.strings("list"), Ok(vec!["a".to_string(), "b".to_string()]));
        let mut inner = all.object("o").expect("an object").expect("it is there");
        assert_eq!(inner.integer("p", 0, 9), Ok(Some(1)));
        assert_eq!(inner.unknown(), ["o.q"]);
        assert!(all.has_string("t") && !all.has_string("n"));
        assert_eq!((all.required_string("t"), all.unknown()), (Ok("x".to_string()), Vec::new()));
        let mut all = fields(r#"{"items": [{"b": 1, "a": {"z": 1, "y": 2}}, {}], "list": [{}, 5]}"#);
        let mut items = all.objects("items").expect("objects").expect("they are there");
        assert_eq!(items[0].raw_object("a").expect("an object").map(|raw| raw.get().len()), Some(16));
        let found = items[0].raw_object("b").map_err(message).map(drop);
        let expected = format!("items[0].b: expected an object of {READABLE}, found 1");
        assert_eq!(found, Err(expected));
        assert_eq!(
            items[1].required_string("c").map_err(message),
            Err("items[1].c: expected a string, found none".into())
        );
        let found = all.objects("list").map_err(message).map(drop);
        assert_eq!(found, Err("list[1]: expected an object, found 5".to_string()));
    }

    #[test]
    fn errors_have_name_expected_and_found_value() {
        let mut all = fields(r#"{"a": 1.5, "b": "1", "c": 1e999, "d": -1, "e": {"f": 3}, "g": [1]}"#);
        let found = all.count("a", 1, 9).map_err(message);
        assert_eq!(found, Err("a: expected a whole number from 1 to 9, found 1.5".to_string()));
        let found = all.boolean("b").map_err(message);
        assert_eq!(found, Err("b: expected true or false, found \"1\"".to_string()));
        let found = all.number("c", 0.0, f32::MAX).map_err(message);
        assert_eq!(found, Err("c: expected a number from 0 up, found 1e999".to_string()));
        let found = all.number("d", 0.0, 1.0).map_err(message);
        assert_eq!(found, Err("d: expected a number from 0 to 1, found -1".to_string()));
        let mut inner = all.object("e").expect("an object").expect("it is there");
        let found = inner.string("f").map_err(message);
        assert_eq!(found, Err("e.f: expected a string, found 3".to_string()));
        let found = all.strings("g").map_err(message);
        assert_eq!(found, Err("g: expected a string or a list of strings, found [1]".to_string()));
    }

    #[test]
    fn renamed_and_nested_fields_are_found() {
        let mut all = fields(r#"{"speculative": {"n_max": 3}, "speculative.n_min": 1, "repeat_penalty": 1.1}"#);
        all.flatten("speculative").expect("no field twice");
        all.rename("repeat_penalty", "repetition_penalty").expect("no field twice");
        assert_eq!(all.unknown(), ["repeat_penalty", "speculative.n_max", "speculative.n_min"]);
        let found = all.with_sent_name(ApiError::field("repetition_penalty", "expected less, found 2"));
        assert_eq!(
            (found.param.as_deref(), found.message.as_str()),
            (Some("repeat_penalty"), "repeat_penalty: expected less, found 2",)
        );
        let mut twice = fields(r#"{"speculative": {"n_max": 3}, "speculative.n_max": 1, "a": 1, "b": 2}"#);
        assert!(twice.flatten("speculative").is_err());
        assert_eq!(twice.rename("a", "b").map_err(message), Err("a: expected it or b, found both".to_string()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Fields::of_body(&body);
        }

        #[test]
        fn any_value_is_taken_or_refused(value in r#"[-0-9eE.+"\[\]{}:,a-z]{0,40}"#) {
            let body = format!("{{\"a\": {value}}}");
            let take = |with: fn(&mut Fields)| if let Ok(mut all) = Fields::of_body(body.as_bytes()) { with(&mut all) };
            take(|all| drop(all.number("a", 0.0, 1.0)));
            take(|all| drop(all.integer("a", 0, 10)));
            take(|all| drop(all.strings("a")));
            take(|all| drop(all.object("a")));
            take(|all| drop(all.value("a")));
        }
    }
}
