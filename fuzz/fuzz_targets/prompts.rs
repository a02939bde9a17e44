//! Any text as a file of prompts or of records, as the command line reads them: no panic, and a refusal names the file
//! and says what was expected. What is checked is in `probe`, which the ordinary tests of the program share; the first
//! byte says what the file is.

#![no_main]

mod failure {
    //! Why a file is refused: as much of the program's own as its readers need.

    use std::path::Path;

    pub enum Failure {
        Other(String),
    }

    impl Failure {
        pub fn message(&self) -> Option<String> {
            let Self::Other(message) = self;
            Some(message.split_whitespace().collect::<Vec<_>>().join(" "))
        }

        pub fn file(path: &Path, error: &std::io::Error) -> Self {
            Self::Other(format!("{}: cannot be read: {error}", path.display()))
        }
    }

    impl From<foretoken_text::TextError> for Failure {
        fn from(error: foretoken_text::TextError) -> Self {
            Self::Other(error.to_string())
        }
    }
}

#[allow(dead_code)] // reading files
#[path = "../../crates/cli/src/records.rs"]
mod records;

#[allow(dead_code)] // the kinds of prompts
#[path = "../../crates/cli/src/prompts/listed.rs"]
mod listed;

#[path = "../../crates/cli/src/prompts/probe.rs"]
mod probe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    probe::file(data);
});
