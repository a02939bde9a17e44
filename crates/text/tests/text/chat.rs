//! Chat templates of models.

use foretoken_text::{ChatInput, ChatTemplate, Json, Message};

use crate::{TARGET, model};

pub const CHATML: &str = "{%- if messages[0]['role'] == 'system' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
";

pub const LLAMA_3: &str = "{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = '26 Jul 2024' %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = \"\" %}
{%- endif %}
{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}
{%- if tools is not none %}
    {{- \"Environment: ipython\\n\" }}
{%- endif %}
{{- \"Today Date: \" + date_string + \"\\n\\n\" }}
{{- system_message }}
{{- \"<|eot_id|>\" }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
";

#[test]
fn the_demo_model_s_template() {
    let template = ChatTemplate::from_dir(&model("demo-target")).unwrap().unwrap();
    let messages = [Message::new("system", "S"), Message::new("tool", "R"), Message::new("user", "Hi\n")];
    let text = template.render(&ChatInput::new(&messages, true)).unwrap();
    assert_eq!(text, "<|system|>S<|end|><|result|>R<|end|><|user|>Hi\n<|end|><|assistant|>");
    assert!(!template.render(&ChatInput::new(&messages, false)).unwrap().ends_with("<|assistant|>"));
    assert!(template.source().starts_with("{% for m in messages %}"));
    let tokens = TARGET.encode(&text, false).unwrap();
    assert_eq!(tokens.iter().filter(|&&token| TARGET.is_special(token)).count(), 7);
}

#[test]
fn chatml() {
    let template = ChatTemplate::from_source("chatml", CHATML, "", "<|im_end|>").unwrap();
    let messages = [Message::new("system", "Be brief."), Message::new("user", " 1 < 2? ")];
    assert_eq!(
        template.render(&ChatInput::new(&messages, true)).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn llama_3() {
    let template = ChatTemplate::from_source("llama", LLAMA_3, "<|begin_of_text|>", "<|eot_id|>").unwrap();
    let messages = [Message::new("system", "S"), Message::new("user", "U"), Message::new("assistant", "A")];
    let head = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nS<|eot_id|>";
    let turn = |role: &str, text: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>");
    assert_eq!(
        template.render(&ChatInput::new(&messages, false)).unwrap(),
        [head, &turn("user", "U"), &turn("assistant", "A")].concat()
    );
    let error = template.render(&ChatInput::new(&messages[2..], true)).unwrap_err().to_string();
    assert!(error.starts_with("llama: chat template: ") && error.contains("roles must alternate"), "{error}");
}

#[test]
fn a_template_in_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ChatTemplate::from_dir(folder.path()).unwrap().is_none());
    let config = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>",
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    let template = ChatTemplate::from_dir(folder.path()).unwrap().unwrap();
    assert_eq!(template.render(&ChatInput::new(&[Message::new("user", "x")], true)).unwrap(), "<s>x</s>");
    std::fs::write(folder.path().join("chat_template.jinja"), "J{{ eos_token }}").unwrap();
    let template = ChatTemplate::from_dir(folder.path()).unwrap().unwrap();
    assert_eq!(template.render(&ChatInput::new(&[], true)).unwrap(), "J</s>");
}

#[test]
fn several_templates_and_additional_special_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
    write("special_tokens_map.json", r#"{"eos_token": "</s>", "pad_token": {"content": "<pad>"}}"#);
    write(
        "tokenizer_config.json",
        r#"{"bos_token": "<s>", "extra_special_tokens": {"image_token": "<image>"}, "chat_template": [
            {"name": "default", "template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}"},
            {"name": "tool_use", "template": "{{ tools | length }} tools"}]}"#,
    );
    let with_tools = ChatInput { tools: Some(vec![]), ..ChatInput::default() };
    let template = ChatTemplate::from_dir(folder.path()).unwrap().unwrap();
    assert_eq!(template.render(&ChatInput::default()).unwrap(), "<s></s><pad><image>");
    assert_eq!(template.render(&with_tools).unwrap(), "0 tools");
    write("chat_template.jinja", "D");
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", "T");
    let template = ChatTemplate::from_dir(folder.path()).unwrap().unwrap();
    assert_eq!(
        (template.render(&ChatInput::default()).unwrap(), template.render(&with_tools).unwrap()),
        ("D".into(), "T".into())
    );
}

#[test]
fn template_variables() {
    let render = |source: &str, input: &ChatInput| {
        ChatTemplate::from_source("given", source, "", "").unwrap().render(input).map_err(|error| error.to_string())
    };
    let message: Message =
        serde_json::from_str(r#"{"role": "assistant", "content": null, "thinking": "hm", "z": 1, "a": 1e-5}"#).unwrap();
    assert_eq!((message.role().as_deref(), message.content()), (Some("assistant"), None));
    let mut input = ChatInput::new(&[message], false);
    input.variables.push(("enable_thinking".to_owned(), Json::from(false)));
    let source = "{{ messages[0] | tojson }} {{ enable_thinking }} {{ messages[0].content is defined }}";
    let expected =
        r#"{"thinking": "hm", "role": "assistant", "z": 1, "a": 1e-05, "reasoning_content": "hm"} False False"#;
    assert_eq!(render(source, &input).unwrap(), expected);
    assert!(serde_json::from_str::<Message>("[1]").unwrap_err().to_string().starts_with("expected a message"));

    let mut input = ChatInput::new(&[Message::new("user", "a"), Message::new("assistant", "The  ")], false);
    input.continue_final_message = true;
    let source = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
    assert_eq!(render(source, &input).unwrap(), "<a><The  ");
    assert_eq!(render(&source.replace("m.content", "m.content | trim"), &input).unwrap(), "<a><The");
    let error = render("x", &input).unwrap_err();
    assert!(error.ends_with("to continue it, found it left out"), "{error}");
    input.messages.clear();
    assert!(render(source, &input).unwrap_err().ends_with("found none"));
    let parts: Message = serde_json::from_str(r#"{"role": "user", "content": [{"text": "b"}, {"image": 1}]}"#).unwrap();
    input.messages.push(parts);
    assert_eq!(render("{{ messages[0].content[0].text }}.", &input).unwrap(), "b");
}

#[test]
fn python_methods_and_filters() {
    let render = |source: &str| {
        ChatTemplate::from_source("python", source, "", "").unwrap().render(&ChatInput::default()).unwrap()
    };
    assert_eq!(
        render("{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('a') }} {{ 'a-b'.index('b') }}"),
        "bc abc 2"
    );
    assert_eq!(
        render("{{ 'a-b-c'.rsplit('-', 1) | join('|') }} {{ 'a-b'.partition('-') | join('|') }}"),
        "a-b|c a|-|b"
    );
    assert_eq!(render("{{ 'ab'.partition('-') | join('|') }} {{ 'a-b-c'.rpartition('-') | first }}"), "ab|| a-b");
    assert_eq!(render("{{ 'a\n\nb\n' | indent(2, first=true) }}{{ 'a\nb' | indent('> ') }}"), "  a\n\n  b\na\n> b");
    assert_eq!(
        render("{{ undefined | length }} {{ none is iterable }} {{ [] is iterable }} {{ 'x' is iterable }}"),
        "0 False True True"
    );
    assert_eq!(
        render("{{ 1e-5 }} {{ 2.0 | string }} {{ 1e16 }} {{ [1] | tojson(separators=[',', ':']) }}"),
        "1e-05 2.0 1e+16 [1]"
    );
}
