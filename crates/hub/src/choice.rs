//! Which files of a repository are needed: its weights in one format, and the files that belong to them.
//!
//! A GGUF file has everything: one of them is needed, or all its parts (`-00001-of-00003`). Weights in safetensors are
//! one file, or those that an index names, with configuration, tokenizer and chat template in files of their own.
//! Pickled weights (`.bin`) are never needed.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::{HubError, excerpt};

/// The files that belong to weights in safetensors, as far as a repository has them.
const COMPANIONS: [&str; 15] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "qwen.tiktoken",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja",
];

/// The preferred quantizations if none is asked for; the first is llama.cpp's default.
const QUANTS_FIRST: [&str; 2] = ["Q4_K_M", "Q8_0"];

const WHOLE: &str = "model.safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";

/// The files that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// GGUF files in the order of their parts; the first is opened.
    Gguf(Vec<String>),
    /// The files of a folder, and its weights.
    Safetensors(Vec<String>, Weights),
}

/// Weights in safetensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// One file.
    Whole(String),
    /// The files that this index names.
    Index(String),
}

/// The files of a repository.
pub(crate) struct Files<'a> {
    paths: BTreeSet<&'a str>,
    /// GGUF files of networks, without image projectors and importance matrices.
    ggufs: Vec<&'a str>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(paths: impl Iterator<Item = &'a str>) -> Self {
        let paths: BTreeSet<&str> = paths.collect();
        let ggufs = paths.iter().copied().filter(|path| is_network(path)).collect();
        Self { paths, ggufs }
    }

    /// The weights in safetensors, if there are any that can be opened.
    fn weights(&self) -> Option<Weights> {
        let usual = format!("model{INDEX_ENDING}");
        if self.paths.contains(WHOLE) {
            return Some(Weights::Whole(WHOLE.to_string()));
        }
        if self.paths.contains(usual.as_str()) {
            return Some(Weights::Index(usual));
        }
        let mut others = self.paths.iter().filter(|path| path.ends_with(INDEX_ENDING) && !path.contains('/'));
        match (others.next(), others.next()) {
            (Some(only), None) => Some(Weights::Index((*only).to_string())),
            _ => None,
        }
    }

    /// Whether the configuration decides which format is chosen.
    pub(crate) fn has_both(&self) -> bool {
        !self.ggufs.is_empty() && self.paths.contains("config.json") && self.weights().is_some()
    }

    /// The files for `quant`, or `file`, or neither. `usable`: for a repository with both formats, whether the
    /// configuration is of a network that can be run.
    pub(crate) fn choose(&self, quant: Option<&str>, file: Option<&str>, usable: bool) -> Result<Choice, HubError> {
        if let Some(file) = file {
            return match self.paths.contains(file) && file.to_lowercase().ends_with(".gguf") {
                true => self.parts(file).map(Choice::Gguf),
                false => Err(refused(format!("expected a .gguf file of the repository, found no {}", excerpt(file)))),
            };
        }
        if let Some(quant) = quant {
            let found = self.ggufs.iter().find(|path| matches_quant(path, quant));
            let found = found.ok_or_else(|| {
                let found = if self.ggufs.is_empty() { "no GGUF file".to_string() } else { self.quants().join(", ") };
                refused(format!("expected a GGUF file of {quant}, found {found}"))
            })?;
            return self.parts(found).map(Choice::Gguf);
        }
        let has_config = self.paths.contains("config.json");
        if let Some(weights) = self.weights().filter(|_| has_config && (usable || self.ggufs.is_empty())) {
            let companions = COMPANIONS.iter().filter(|path| self.paths.contains(**path)).map(|path| path.to_string());
            return Ok(Choice::Safetensors(companions.collect(), weights));
        }
        let preferred = QUANTS_FIRST.iter().find_map(|quant| self.ggufs.iter().find(|path| matches_quant(path, quant)));
        match preferred.or(self.ggufs.first()) {
            Some(path) => self.parts(path).map(Choice::Gguf),
            None => {
                Err(refused(format!("expected config.json with safetensors, or a .gguf file, found {}", self.what())))
            }
        }
    }

    /// The names of the quantizations, each once.
    pub(crate) fn quants(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.ggufs.iter().map(|path| quant_of(path)).collect();
        all.into_iter().collect()
    }

    /// The GGUF file of each model, of several parts the first.
    pub(crate) fn ggufs(&self) -> impl Iterator<Item = &'a str> {
        self.ggufs.iter().copied().filter(|path| part_of(path).is_none_or(|(_, number, _)| number == 1))
    }

    /// All parts of a GGUF file, in order.
    pub(crate) fn parts(&self, path: &str) -> Result<Vec<String>, HubError> {
        let Some((prefix, _, count)) = part_of(path) else { return Ok(vec![path.to_string()]) };
        let part = |number| format!("{prefix}-{number:05}-of-{count:05}.gguf");
        let parts: Vec<String> = (1..=count).map(part).take_while(|part| self.paths.contains(part.as_str())).collect();
        match parts.len() == count {
            true => Ok(parts),
            false => Err(refused(format!("expected the file {}, found none", part(parts.len() + 1)))),
        }
    }

    fn what(&self) -> &'static str {
        let has = |ending: &str| self.paths.iter().any(|path| path.ends_with(ending));
        match () {
            () if has(".safetensors") && !self.paths.contains("config.json") => "safetensors without config.json",
            () if has(".safetensors") => "safetensors without an index, or with several",
            () if has(".bin") || has(".pt") || has(".pth") => "pickled weights, which are programs and not run",
            () => "neither",
        }
    }
}

fn refused(line: String) -> HubError {
    HubError::Refused(line)
}

/// Whether a path is a network's, not an image projector's or an importance matrix's.
fn is_network(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix")
}

/// Prefix, number (from 1) and count of a part of a GGUF model.
fn part_of(path: &str) -> Option<(&str, usize, usize)> {
    let stem = path.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let number_of = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse::<usize>().ok()).flatten()
    };
    let (number, count) = (number_of(number)?, number_of(count)?);
    (number >= 1 && number <= count).then_some((prefix, number, count))
}

/// Whether a file is of a quantization: it is a network's, and its path has the name as a word, in any case. This rule
/// decides both what is fetched and what is removed.
pub(crate) fn matches_quant(path: &str, quant: &str) -> bool {
    if !is_network(path) {
        return false;
    }
    let (path, quant) = (path.to_lowercase(), quant.to_lowercase());
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    path.match_indices(&quant)
        .any(|(at, _)| !is_word(path[..at].chars().next_back()) && !is_word(path[at + quant.len()..].chars().next()))
}

/// The quantization of a file by its name: the last word that looks like one, else the whole name.
pub(crate) fn quant_of(path: &str) -> String {
    let stem = part_of(path).map_or(path.trim_end_matches(".gguf"), |(prefix, _, _)| prefix);
    let name = stem.rsplit('/').next().unwrap_or(stem);
    let is_quant = |word: &&str| {
        let word = word.to_uppercase();
        let numbered = ["IQ", "TQ", "Q"].iter().find_map(|start| word.strip_prefix(start));
        numbered.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            || ["F16", "BF16", "F32", "FP16"].contains(&word.as_str())
            || word.starts_with("MXFP4")
    };
    let found = name.split(['-', '.']).rfind(is_quant);
    found.map_or_else(|| name.to_string(), str::to_uppercase)
}

/// The files that an index of safetensors names, each once. Names with a path are refused.
pub(crate) fn shards(index: &str, text: &[u8]) -> Result<Vec<String>, HubError> {
    let value: Value = serde_json::from_slice(text)
        .map_err(|error| HubError::Content(format!("{index}: expected JSON, found: {error}")))?;
    let map = value["weight_map"].as_object().filter(|map| !map.is_empty());
    let map = map.ok_or_else(|| HubError::Content(format!("{index}: weight_map: expected an object, found none")))?;
    let mut all = BTreeSet::new();
    for shard in map.values() {
        let is_plain = |name: &&str| name.ends_with(".safetensors") && !name.contains(['/', '\\', ':', '\0']);
        let name = shard.as_str().filter(is_plain);
        let found = excerpt(&shard.to_string());
        let wrong = || HubError::Content(format!("{index}: weight_map: expected .safetensors files, found {found}"));
        all.insert(name.ok_or_else(wrong)?.to_string());
    }
    Ok(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(paths: &[&str], quant: Option<&str>) -> Result<Choice, String> {
        Files::new(paths.iter().copied()).choose(quant, None, true).map_err(|error| error.to_string())
    }

    fn gguf(paths: &[&str]) -> Result<Choice, String> {
        Ok(Choice::Gguf(paths.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn a_quant_is_a_word_of_the_name_in_any_case() {
        let paths = ["m-IQ4_XS.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf", "m-q8_0.gguf", "Q4_K/x.gguf", "m.gguf"];
        assert_eq!(choose(&paths, Some("q4_k_s")), gguf(&["m-Q4_K_S.gguf"]));
        assert_eq!(choose(&paths, Some("Q4_K_XL")), gguf(&["m-UD-Q4_K_XL.gguf"]));
        assert_eq!(choose(&paths, Some("Q8_0")), gguf(&["m-q8_0.gguf"]));
        assert_eq!(choose(&paths, Some("Q4_K")), gguf(&["Q4_K/x.gguf"]));
        let all = "IQ4_XS, Q4_K_S, Q4_K_XL, Q8_0, m, x";
        assert_eq!(choose(&paths, Some("Q4_XS")), Err(format!("expected a GGUF file of Q4_XS, found {all}")));
        assert_eq!(choose(&["a.bin"], Some("Q8_0")), Err("expected a GGUF file of Q8_0, found no GGUF file".into()));
    }

    #[test]
    fn without_a_quant_safetensors_come_first_then_llama_cpps_order() {
        let ggufs = ["a-F16.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a-Q4_K_M.gguf"];
        assert_eq!(choose(&ggufs, None), gguf(&["a-Q4_K_M.gguf"]));
        assert_eq!(choose(&["a-F16.gguf", "a-Q8_0.gguf"], None), gguf(&["a-Q8_0.gguf"]));
        assert_eq!(choose(&["b-Q5_0.gguf", "a-Q5_K.gguf"], None), gguf(&["a-Q5_K.gguf"]));
        let both = [&ggufs[..], &["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"]].concat();
        let companions = vec!["config.json".to_string(), "tokenizer.json".to_string()];
        assert_eq!(choose(&both, None), Ok(Choice::Safetensors(companions, Weights::Whole(WHOLE.into()))));
        assert_eq!(choose(&both, Some("f16")), gguf(&["a-F16.gguf"]));
        let files = Files::new(both.iter().copied());
        assert!(files.has_both());
        assert_eq!(files.choose(None, None, false), Ok(Choice::Gguf(vec!["a-Q4_K_M.gguf".into()])));
        assert_eq!(files.choose(None, Some("a-Q8_0.gguf"), true), Ok(Choice::Gguf(vec!["a-Q8_0.gguf".into()])));
        assert!(
            files.choose(None, Some("b.gguf"), true).is_err() && files.choose(None, Some("config.json"), true).is_err()
        );
    }

    #[test]
    fn a_file_with_missing_parts_is_refused() {
        let paths = ["q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf", "m-F16-00001-of-00003.gguf"];
        assert_eq!(choose(&paths, Some("q8_0")), gguf(&paths[..2]));
        let missing = "expected the file m-F16-00002-of-00003.gguf, found none";
        assert_eq!(choose(&paths, Some("f16")), Err(missing.into()));
        let firsts: Vec<&str> = Files::new(paths.into_iter()).ggufs().collect();
        assert_eq!(firsts, ["m-F16-00001-of-00003.gguf", "q/m-Q8_0-00001-of-00002.gguf"]);
        assert_eq!(quant_of(paths[0]), "Q8_0");
        assert_eq!(quant_of("x/Llama-3.2-1B-UD-IQ1_S.gguf"), "IQ1_S");
    }

    #[test]
    fn weights_are_one_file_or_those_of_one_index() {
        let index = |paths: &[&str]| match choose(paths, None) {
            Ok(Choice::Safetensors(_, weights)) => Ok(weights),
            other => Err(other.map(|_| ()).unwrap_err()),
        };
        let sharded = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"];
        assert_eq!(index(&sharded), Ok(Weights::Index(sharded[2].into())));
        assert_eq!(
            index(&["config.json", "c.safetensors.index.json"]),
            Ok(Weights::Index("c.safetensors.index.json".into()))
        );
        for (paths, found) in [
            (&["config.json", "pytorch_model.bin"][..], "pickled weights, which are programs and not run"),
            (&["model.safetensors"], "safetensors without config.json"),
            (&["config.json", "a.safetensors"], "safetensors without an index, or with several"),
            (&["README.md"], "neither"),
        ] {
            assert!(index(paths).is_err_and(|line| line.ends_with(&format!("found {found}"))), "{paths:?}");
        }
    }

    #[test]
    fn an_index_names_plain_files() {
        let found =
            shards("i", br#"{"weight_map": {"a": "x-2.safetensors", "b": "x-1.safetensors", "c": "x-2.safetensors"}}"#);
        assert_eq!(found, Ok(vec!["x-1.safetensors".into(), "x-2.safetensors".into()]));
        for text in ["", "[]", "{}", r#"{"weight_map": {"a": "../x.safetensors"}}"#, r#"{"weight_map": {"a": 7}}"#] {
            assert!(matches!(shards("i", text.as_bytes()), Err(HubError::Content(line)) if line.starts_with("i: ")));
        }
    }
}
