//! Templates of real models, and hostile ones.

use super::*;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source("test", source, "<s>", "</s>").unwrap()
}

fn render(source: &str) -> String {
    let messages = [Message::new("user", "hi <b> \"ä\"")];
    template(source).render(&ChatInput::new(&messages, true)).unwrap()
}

#[test]
fn white_space_is_trimmed_as_in_transformers() {
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
    assert!(error.starts_with("a.jinja: chat template: line 1: syntax error"), "{error}");
    assert_eq!(error.lines().count(), 1);
    for other in ["{% include 'chat' %}", "{% import 'chat' as x %}", "{% extends 'chat' %}"] {
        let error = ChatTemplate::from_source("test", other, "", "").unwrap_err().to_string();
        assert!(error.contains("expected one template, found a second"), "{error}");
    }
}

#[test]
fn a_runaway_template_is_stopped() {
    let deep = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
        {% endfor %}{% endfor %}{% endfor %}";
    let error = template(deep).render(&ChatInput::default()).unwrap_err().to_string();
    assert!(error.starts_with("test: chat template: line 1: expected at most "), "{error}");
    assert!(error.ends_with("steps or 16 MiB for this conversation, found more"), "{error}");
    // A long list among a client's own variables does not make the conversation longer.
    let zeros = serde_json::from_str(&format!("[0{}]", ",0".repeat(9999))).unwrap();
    let input = ChatInput { variables: vec![("zeros".to_owned(), zeros)], ..ChatInput::default() };
    let wide = "{% for a in range(9999) %}{% for b in range(999) %}{% endfor %}{% endfor %}";
    let error = template(wide).render(&input).unwrap_err().to_string();
    assert!(error.contains(" steps or "), "{error}");
    let endless = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}";
    assert!(template(endless).render(&ChatInput::default()).is_err());
}

#[test]
fn configurations_hold_one_template_or_several() {
    let read = |json: &str| {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        files::of_config("config", Some(&value)).map_err(|error| error.to_string())
    };
    assert_eq!(read("\"x\""), Ok(Some(("x".into(), None))));
    assert_eq!(read("null"), Ok(None));
    let named = r#"[{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]"#;
    assert_eq!(read(named), Ok(Some(("d".into(), None))));
    let named = r#"[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]"#;
    assert_eq!(read(named), Ok(Some(("d".into(), Some("t".into())))));
    let expected = "config: chat_template: expected a template named default, found [rag]";
    assert_eq!(read(r#"[{"name": "rag", "template": "r"}]"#), Err(expected.into()));
    assert_eq!(read("3"), Err("config: chat_template: expected a string or a list of templates, found 3".into()));
}

/// The features of gpt-oss's template (harmony): recursive macros, variables that outlive a loop, slices of the
/// messages, type tests. The expected text is transformers'.
#[test]
fn templates_with_channels_render_as_in_transformers() {
    let source = r#"{%- macro kind(spec, required, nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- set inner = kind(spec['items'], required) -%}
        {{- "any[]" if inner|length > 6 else inner + "[]" }}
    {%- elif spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") }}
    {%- else -%}
        {{- spec.type }}
    {%- endif -%}
    {%- if nullable %}{{- "?" }}{%- endif -%}
{%- endmacro -%}
{%- if messages[0].role == "system" %}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest -%}
    {%- if "tool_calls" in message %}
        {%- set later = namespace(found=false) %}
        {%- for next in rest[loop.index:] %}
            {%- if next.role == "assistant" and "tool_calls" not in next %}{%- set later.found = true %}{%- endif %}
        {%- endfor %}
        {%- set call = message.tool_calls[0] %}
        {%- if call.function %}{%- set call = call.function %}{%- endif %}
        {{- "<" + call.name + (call.content_type if call.content_type is defined else "json") + ">" }}
        {{- call.arguments|tojson + ("!" if later.found else ".") }}
        {%- set last.name = call.name %}
    {%- elif message.role == "tool" %}
        {{- "[" + last.name + message.content|tojson + "]" }}
    {%- else %}
        {{- message.role + "=" + message.content + ";" }}
    {%- endif %}
{%- endfor -%}
{{- kind({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, []) }},
{{- kind({"type": ["null", "string"]}, [], nullable=true) }}"#;
    let messages = r#"[{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "é", "n": 1}}}]},
        {"role": "tool", "content": "{\"y\": 2}"}, {"role": "assistant", "content": "b"}]"#;
    let messages: Vec<Message> = serde_json::from_str(messages).unwrap();
    let found = template(source).render(&ChatInput::new(&messages, true)).unwrap();
    let expected = r#"user=a;<fjson>{"x": "é", "n": 1}![f"{\"y\": 2}"]assistant=b;any[],null | string?"#;
    assert_eq!(found, expected);
}

#[test]
fn builtin_templates_write_their_models_format() {
    let messages = [
        Message::new("system", "be brief"),
        Message::new("user", "hi"),
        Message::new("assistant", "yes?"),
        Message::new("user", "bye"),
    ];
    let written = |name: &str, from: usize| {
        let source = ChatTemplate::source_for(name).expect("it has a name");
        template(source).render(&ChatInput::new(&messages[from..], true)).expect(name)
    };
    let turns =
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes?<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n";
    let system = "<|im_start|>system\nbe brief<|im_end|>\n";
    assert_eq!(written("chatml", 0), format!("{system}{turns}<|im_start|>assistant\n"));
    let turns = "hi<end_of_turn>\n<start_of_turn>model\nyes?<end_of_turn>\n<start_of_turn>user\nbye<end_of_turn>\n";
    let gemma = |before: &str| format!("<s><start_of_turn>user\n{before}{turns}<start_of_turn>model\n");
    assert_eq!((written("gemma", 0), written("gemma", 1)), (gemma("be brief\n\n"), gemma("")));
    let llama = |before: &str| format!("<s>[INST] {before}hi [/INST] yes? </s><s>[INST] bye [/INST]");
    assert_eq!(written("llama2", 0), llama("<<SYS>>\nbe brief\n<</SYS>>\n\n"));
    assert_eq!(written("llama2", 1), llama(""));
    let turn = |role: &str, text: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>");
    let turns = [turn("user", "hi"), turn("assistant", "yes?"), turn("user", "bye")].concat();
    let end = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(written("llama3", 0), format!("<s>{}{turns}{end}", turn("system", "be brief")));
    let phi = "<|user|>\nhi<|end|>\n<|assistant|>\nyes?<|end|>\n<|user|>\nbye<|end|>\n<|assistant|>\n";
    assert_eq!(written("phi3", 1), phi);
    assert_eq!(written("zephyr", 1), phi.replace("<|end|>", "</s>"));
    assert_eq!(written("vicuna", 0), "be brief\n\nUSER: hi\nASSISTANT: yes?</s>\nUSER: bye\nASSISTANT:");
    assert_eq!(ChatTemplate::names().collect::<Vec<_>>().len(), 7);
    assert_eq!((ChatTemplate::source_for("chat"), ChatTemplate::source_for("{{ x }}")), (None, Some("{{ x }}")));
}
