//! The names of the library's settings as options of the command line, for messages.
//!
//! Most options have the setting's name with dashes instead of underscores; the others have the name that llama.cpp,
//! transformers or a paper gave them. The names of drafters' options are in the library's tables.

use foretoken::drafters::DrafterSettings;

/// Settings whose options have other names than the setting.
const NAMES: &[(&str, &str)] = &[
    ("temperature", "--temp"),
    ("typical_p", "--typical"),
    ("repetition_penalty", "--repeat-penalty"),
    ("penalty_window", "--repeat-last-n"),
    ("banned_tokens", "--ban-token"),
    ("tokens_min", "--min-tokens"),
    ("tokens_max", "--n-predict"),
    ("choices", "--choice"),
    ("draft.n_min", "--spec-draft-n-min"),
    ("draft.n_max", "--spec-draft-n-max"),
    ("draft.p_min", "--spec-draft-p-min"),
    ("draft.p_split", "--spec-draft-p-split"),
    ("draft.temperature", "--spec-draft-temp"),
    ("draft.top_p", "--spec-draft-top-p"),
    ("draft.min_p", "--spec-draft-min-p"),
    ("translate", "--spec-draft-translate"),
];

/// The option of a setting.
pub fn option(setting: &str) -> String {
    if let Some(of_drafter) = DrafterSettings::options().find(|option| option.setting == setting) {
        return format!("--{}", of_drafter.long);
    }
    let other = NAMES.iter().find(|(name, _)| *name == setting).map(|(_, option)| (*option).to_string());
    other.unwrap_or_else(|| format!("--{}", setting.replace('_', "-")))
}

/// As [`option`], for errors: with the short form `-md`, which is hard to guess.
pub fn option_of_error(setting: &str) -> String {
    if setting == "model_draft" { "-md, --model-draft".to_string() } else { option(setting) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_names_of_options() {
        let found = ["ctx_size", "temperature", "draft.n_max", "ngram.order", "phrases"].map(option);
        assert_eq!(found, ["--ctx-size", "--temp", "--spec-draft-n-max", "--ngram-order", "--phrases"]);
    }
}
