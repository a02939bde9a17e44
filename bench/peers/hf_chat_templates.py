"""Renders chat templates with transformers, as test vectors for crates/text/tests/text/templates.rs.

    python bench/peers/hf_chat_templates.py FOLDER_OF_TEMPLATES OUT

Reads every `*.jinja` of the folder, renders a fixed set of conversations with the functions of `apply_chat_template`,
and writes into OUT a copy of the template and `NAME.jsonl`: a line per conversation with the inputs and either the text
or the error. Templates that contain today's date are right only on the day on which they were rendered. Needs
transformers.
"""

import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place & \"time\" <now>.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": "integer"}, "description": "Which days"},
            },
            "required": ["place"],
        },
        "return": {"type": "number"},
    },
}
NOW = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def call(number, name, arguments):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


ASKED = [user("What is the weather in Zürich?")]
CALLED = ASKED + [
    assistant("", tool_calls=[call(1, "get_weather", {"place": "Zürich", "days": [1, 2], "exact": True, "t": 1e-05})])
]
ANSWERED = CALLED + [
    {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"temperature": 21.5}'}
]
TOOLS = [WEATHER, NOW]
CONVERSATIONS = {
    "user": dict(messages=[user("Hello")]),
    "no_prompt": dict(messages=[user("Hello"), assistant("Hi.")], add_generation_prompt=False),
    "system": dict(messages=[{"role": "system", "content": "Be brief."}, user("1 < 2 && 'x' > \"y\"?")]),
    "turns": dict(messages=[user("a"), assistant("b"), user("c"), assistant("d"), user("e")]),
    "system_turns": dict(messages=[{"role": "system", "content": "S"}, user("a"), assistant("b"), user("c")]),
    "empty": dict(messages=[user("")]),
    "empty_system": dict(messages=[{"role": "system", "content": ""}, user("x")]),
    "spaces": dict(
        messages=[{"role": "system", "content": "  S \n"}, user("\n  a  \n"), assistant("  b\n\n"), user(" ")]
    ),
    "scripts": dict(
        messages=[user("你好 👩‍👩‍👧 é\u0301 \u00a0x\u3000"), assistant("naïve\t\u200b"), user("ok\r\nthen")]
    ),
    "think": dict(messages=[user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")]),
    "reasoning": dict(messages=[user("a"), assistant("b", reasoning_content="because"), user("c")]),
    "thinking_off": dict(messages=[user("a")], enable_thinking=False),
    "thinking_on": dict(messages=[user("a")], enable_thinking=True, reasoning_effort="high"),
    "tools": dict(messages=ASKED, tools=TOOLS),
    "system_tools": dict(messages=[{"role": "system", "content": "Be brief."}] + ASKED, tools=[WEATHER]),
    "called": dict(messages=CALLED, tools=TOOLS, add_generation_prompt=False),
    "answered": dict(messages=ANSWERED, tools=TOOLS),
    "closed": dict(messages=ANSWERED + [assistant("It is 21.5 °C."), user("Thanks")], tools=TOOLS),
    "two_calls": dict(
        messages=ASKED
        + [
            assistant(
                "Let me see.", tool_calls=[call(1, "get_weather", {"place": "Bern"}), call(2, "now", {})]
            ),
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "rain"},
            {"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "12:00"},
        ],
        tools=TOOLS,
    ),
    "call_as_text": dict(
        messages=ASKED
        + [assistant(None, tool_calls=[call(1, "now", '{"a": 1}')]), {"role": "tool", "content": "12"}],
        tools=[NOW],
    ),
    "no_tools": dict(messages=[user("x")], tools=[]),
    "parts": dict(
        messages=[{"role": "user", "content": [{"type": "text", "text": text} for text in ["Hello", " you"]]}]
    ),
    "name": dict(messages=[{"role": "user", "name": "Ann", "content": "x"}, assistant("y"), user("z")]),
    "continued": dict(
        messages=[user("a"), assistant("The answer is")], add_generation_prompt=False, continue_final_message=True
    ),
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def main(folder, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        source = path.read_text()
        lines = []
        for name, given in CONVERSATIONS.items():
            options = {"add_generation_prompt": True, **given}
            messages = [{k: v for k, v in m.items() if v is not None} for m in options.pop("messages")]
            case = {"name": name, "given": given}
            try:
                texts, _ = render_jinja_template([messages], chat_template=source, **TOKENS, **options)
                case["text"] = texts[0]
            except Exception as error:  # whatever a template raises
                case["error"] = f"{type(error).__name__}: {error}"[:300]
            lines.append(json.dumps(case, ensure_ascii=False))
        (out / path.name).write_text(source)
        (out / f"{path.stem}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
