//! Properties of any chat template: it is refused in one line of bounded length, or it renders. Shared by the fuzz
//! target and the tests.

use foretoken_text::{ChatInput, ChatTemplate, Message};

/// What a template writes for a conversation, or why it is refused.
pub fn written(source: &str, input: &ChatInput) -> Result<String, String> {
    let template = ChatTemplate::from_source("test", source, "<s>", "</s>");
    let written = template.and_then(|template| template.render(input)).map_err(|error| error.to_string());
    if let Err(error) = &written {
        assert!(error.lines().count() == 1 && error.len() < 1100, "{error}");
        assert!(error.starts_with("test: chat template: "), "{error}");
    }
    written
}

/// Any bytes as the source of a template, for two messages.
#[allow(dead_code)] // the fuzz target's
pub fn templates(data: &[u8]) {
    let messages = [Message::new("user", "hi <b>"), Message::new("assistant", "yes?")];
    let _ = written(&String::from_utf8_lossy(data), &ChatInput::new(&messages, true));
}
