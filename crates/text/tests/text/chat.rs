//! Templates as models bring them.

use foretoken_text::{ChatInput, ChatTemplate, Message};

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
