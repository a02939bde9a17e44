//! Templates of real models, and templates that mean harm.

use super::*;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source("test", source, "<s>", "</s>").unwrap()
}

fn render(source: &str) -> String {
    let messages = [Message::new("user", "hi <b> \"ä\"")];
    template(source).render(&ChatInput::new(&messages, true)).unwrap()
}

#[test]
fn white_space_is_cut_as_transformers_does() {
    assert_eq!(render("a\n  {% if true %}\n    b\n  {% endif %}\nc\n"), "a\n    b\nc");
    assert_eq!(render("{%- if true -%}\n  x  {{- ' y' }}\n{%- endif %}\n"), "x y");
    assert_eq!(render("x\n\n"), "x\n");
}

#[test]
fn strings_and_lists_behave_as_in_python() {
    assert_eq!(render("{{ messages[0].role.upper() }} {{ ' a '.strip() }} {{ 'a-b'.split('-')[-1] }}"), "USER a b");
    assert_eq!(render("{{ messages[0].get('name', 'nobody') }} {{ 'role' in messages[0] }}"), "nobody True");
    assert_eq!(render("{{ messages[0]['content'].startswith('hi') }} {{ messages[1:] | length }}"), "True 0");
    assert_eq!(render("{{ messages[0].content | trim }}"), "hi <b> \"ä\"");
    assert_eq!(render("{{ tools is none }} {{ tools is defined }} {{ custom is defined }}"), "True True False");
    assert_eq!(
        render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"),
        "1"
    );
    assert_eq!(
        render(
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}\
             {% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        ),
        "013"
    );
    assert_eq!(render("{% macro say(x) %}<{{ x }}>{% endmacro %}{{ say('a') }}"), "<a>");
    assert_eq!(render("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}"), "<s></s>True");
}

#[test]
fn json_is_python_s() {
    let json = "{\"role\": \"user\", \"content\": \"hi <b> \\\"ä\\\"\"}";
    assert_eq!(render("{{ messages[0] | tojson }}"), json);
    assert_eq!(render("{{ [1, 2.0, none, true, '\\n'] | tojson }}"), "[1, 2.0, null, true, \"\\n\"]");
    assert_eq!(render("{{ {'b': [], 'a': {}} | tojson }}"), "{\"b\": [], \"a\": {}}");
    assert_eq!(render("{{ {'b': [1], 'a': {}} | tojson(indent=2) }}"), "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}");
    assert_eq!(render("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}"), "{\"a\": 2, \"b\": 1}");
    assert_eq!(render("{{ 'ä𝄞' | tojson(ensure_ascii=true) }}"), "\"\\u00e4\\ud834\\udd1e\"");
}

#[test]
fn today_has_a_year() {
    let year: u32 = render("{{ strftime_now('%Y') }}").parse().unwrap();
    assert!(year >= 2024, "{year}");
}

#[test]
fn generation_tags_are_transparent() {
    assert_eq!(render("a{% generation %} b {% endgeneration %}c"), "a b c");
    assert_eq!(render("a {%- generation -%} b {%- endgeneration -%} c"), "abc");
    assert_eq!(program::without_generation_tags("{%}"), "{%}");
    assert_eq!(program::without_generation_tags("{% set generation = 1 %}{% if"), "{% set generation = 1 %}{% if");
}

#[test]
fn exceptions_and_mistakes_are_one_line() {
    let error = template("{{ raise_exception('roles must\nalternate') }}")
        .render(&ChatInput::default())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("test: chat template: ") && error.contains("roles must alternate"), "{error}");
    assert_eq!(error.lines().count(), 1);
    let error = ChatTemplate::from_source("a.jinja", "{% if %}", "", "").unwrap_err().to_string();
    assert!(error.starts_with("a.jinja: chat template: syntax error"), "{error}");
    assert_eq!(error.lines().count(), 1);
    assert!(template("{% include 'other' %}").render(&ChatInput::default()).is_err());
}

#[test]
fn a_runaway_template_is_stopped() {
    let deep = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
        {% endfor %}{% endfor %}{% endfor %}";
    let error = template(deep).render(&ChatInput::default()).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
    let endless = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}";
    assert!(template(endless).render(&ChatInput::default()).is_err());
}

#[test]
fn configurations_hold_one_template_or_several() {
    let of = |json: &str| {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        files::of_config("config", Some(&value)).map_err(|error| error.to_string())
    };
    assert_eq!(of("\"x\""), Ok(Some(("x".into(), None))));
    assert_eq!(of("null"), Ok(None));
    let named = r#"[{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]"#;
    assert_eq!(of(named), Ok(Some(("d".into(), None))));
    let named = r#"[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]"#;
    assert_eq!(of(named), Ok(Some(("d".into(), Some("t".into())))));
    let expected = "config: chat_template: expected a template named default, found [rag]";
    assert_eq!(of(r#"[{"name": "rag", "template": "r"}]"#), Err(expected.into()));
    assert_eq!(of("3"), Err("config: chat_template: expected a string or a list of templates, found 3".into()));
}
