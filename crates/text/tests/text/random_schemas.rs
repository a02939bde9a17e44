//! Random schemas with random texts: an independent validator accepts every text, and each schema's grammar matches the
//! value that the schema was made for.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::walks::{Random, compile, fault, judge, matches, random_text};

/// A schema, and a valid value.
type Pair = (Value, Value);

fn scalar() -> impl Strategy<Value = Pair> {
    let bounds = (-1000i64..1000, 0i64..500, 0i64..500);
    let words = prop::collection::vec(prop::sample::select(vec!["a", "red", "é\n", "\"", "x y", ""]), 1..4);
    prop_oneof![
        Just((json!({"type": "null"}), Value::Null)),
        any::<bool>().prop_map(|value| (json!({"type": "boolean"}), value.into())),
        bounds.clone().prop_map(|(least, within, more)| (
            json!({"type": "integer", "minimum": least, "maximum": least + within + more}),
            (least + within).into(),
        )),
        bounds.prop_map(|(least, within, more)| (
            json!({
                "type": "number",
                "exclusiveMinimum": least as f64 / 8.0 - 0.5,
                "maximum": (least + within + more) as f64 / 8.0,
            }),
            // Integers would be written without a point.
            ((least + within) as f64 / 8.0 - 0.0625).into(),
        )),
        (-1000i64..1000, 1i64..13)
            .prop_map(|(value, step)| { (json!({"type": "integer", "multipleOf": step}), (value * step).into()) }),
        ("[a-zA-Z0-9 é]{0,9}", 0usize..3).prop_map(|(text, more)| {
            let len = text.chars().count();
            (json!({"type": "string", "minLength": len.saturating_sub(more), "maxLength": len + more}), text.into())
        }),
        "[a-c]{2}-[0-9]{1,3}"
            .prop_map(|text| { (json!({"type": "string", "pattern": r"^[a-c]{2}-\d{1,3}$"}), text.into()) }),
        "[a-z]{1,5}\\.[a-zé!]"
            .prop_map(|text| { (json!({"pattern": r"\.\S", "type": ["string", "null"]}), text.into()) }),
        (1900u32..2100, 1u32..13, 1u32..29).prop_map(|(year, month, day)| (
            json!({"type": "string", "format": "date"}),
            format!("{year}-{month:02}-{day:02}").into(),
        )),
        (words, any::<prop::sample::Index>()).prop_map(|(mut words, which)| {
            words.dedup();
            let value = words[which.index(words.len())];
            (json!({"enum": words}), value.into())
        }),
    ]
}

/// An object of these properties, each with whether it is present and required; and whether others are allowed.
fn object(fields: Vec<(Pair, bool, bool)>, is_open: bool) -> Pair {
    let (mut properties, mut required, mut value) = (Map::new(), Vec::new(), Map::new());
    for (i, ((schema, inner), is_required, is_there)) in fields.into_iter().enumerate() {
        let name = ["id", "name", "a b", "é", "\"", "next"][i % 6].to_string();
        if is_required {
            required.push(name.clone());
        }
        if is_required || is_there {
            value.insert(name.clone(), inner);
        }
        properties.insert(name, schema);
    }
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    schema["additionalProperties"] = if is_open { json!({"type": "integer", "minimum": 0}) } else { false.into() };
    (schema, value.into())
}

fn schemas() -> impl Strategy<Value = Pair> {
    scalar().prop_recursive(3, 16, 4, |inner| {
        let fields = prop::collection::vec((inner.clone(), any::<bool>(), any::<bool>()), 0..5);
        prop_oneof![
            (fields, any::<bool>()).prop_map(|(fields, is_open)| object(fields, is_open)),
            (inner.clone(), 0usize..4, 0usize..3).prop_map(|((schema, value), count, more)| (
                json!({
                    "type": "array",
                    "items": schema,
                    "minItems": count.saturating_sub(more),
                    "maxItems": count + more,
                }),
                vec![value; count].into(),
            )),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|pairs| {
                let (schemas, values): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
                let len = values.len();
                let schema = json!({"type": "array", "prefixItems": schemas, "minItems": len, "items": false});
                (schema, values.into())
            }),
            (inner.clone(), inner.clone(), any::<bool>()).prop_map(|(one, other, first)| (
                json!({"anyOf": [one.0, other.0]}),
                if first { one.1 } else { other.1 },
            )),
            inner.clone().prop_map(|(_, value)| (json!({"const": value}), value)),
            inner.clone().prop_map(|(schema, value)| (json!({"allOf": [schema.clone(), schema]}), value)),
            // Recursive lists, by a reference.
            inner.prop_map(|(schema, value)| {
                let items = json!({"anyOf": [schema, {"$ref": "#"}]});
                (json!({"type": "array", "items": items}), json!([[value, []]]))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn texts_of_random_schemas_are_valid((schema, value) in schemas(), seed: u64) {
        // A reference points to the root, which may differ from the part that it was made for.
        let is_meant = !schema.to_string().contains("$ref") || schema.get("items").is_some_and(|items| {
            items.to_string().matches("$ref").count() == 1 && items["anyOf"][1].get("$ref").is_some()
        });
        let grammar = match compile(&schema) {
            Ok(grammar) => grammar,
            Err(error) => {
                prop_assert!(schema.to_string().contains("$ref"), "{schema}: {error}");
                return Ok(());
            }
        };
        let judge = judge(&schema).expect("a good schema");
        if is_meant {
            prop_assert!(judge.is_valid(&value), "{schema} has {value}");
            prop_assert!(matches(&grammar, &value.to_string()), "{schema} has {value}");
        }
        let mut random = Random(seed);
        for _ in 0..3 {
            if let Some(text) = random_text(&grammar, &mut random, 20, 200) {
                let fault = fault(&judge, &text);
                prop_assert!(fault.is_none(), "{schema}: {text}: {fault:?}");
            }
        }
    }
}
