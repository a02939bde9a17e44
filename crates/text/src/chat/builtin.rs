//! Built-in chat templates, for models that come without one: those of llama.cpp that are used most.
//!
//! Each is the Jinja of its model family, as its authors published it, without tools and checks of roles.

/// Names, ascending, with their templates.
pub(super) const BUILTIN: [(&str, &str); 7] = [
    (
        "chatml",
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    ),
    (
        "gemma",
        "{{ bos_token }}{% if messages[0].role == 'system' %}{% set before = messages[0].content | trim + '\\n\\n' %}\
         {% set turns = messages[1:] %}{% else %}{% set before = '' %}{% set turns = messages %}{% endif %}\
         {% for message in turns %}{% set role = 'model' if message.role == 'assistant' else message.role %}\
         {{ '<start_of_turn>' + role + '\\n' + (before if loop.first else '') + message.content | trim \
         + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    ),
    (
        "llama2",
        "{% if messages[0].role == 'system' %}\
         {% set before = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}\
         {% set turns = messages[1:] %}{% else %}{% set before = '' %}{% set turns = messages %}{% endif %}\
         {% for message in turns %}{% set content = (before if loop.first else '') + message.content %}\
         {% if message.role == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}\
         {% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role \
         + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    ),
    (
        "phi3",
        "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "vicuna",
        "{% for message in messages %}{% if message.role == 'user' %}{{ 'USER: ' + message.content + '\\n' }}\
         {% elif message.role == 'assistant' %}{{ 'ASSISTANT: ' + message.content + eos_token + '\\n' }}\
         {% else %}{{ message.content + '\\n\\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
];
