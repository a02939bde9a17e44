//! Draft models for a model: of its family, or small models of another vocabulary, whose drafts are translated
//! (Universal Assisted Generation).
//!
//! The file `drafts.json` has families, models of one vocabulary with their sizes, and the assistants, small models
//! that can draft for any other. Of two candidates the one of the higher expected speedup (Theorem 3.8 of Leviathan et
//! al. 2023) is proposed.

use std::sync::LazyLock;

use foretoken::theory::best_gamma;
use foretoken_hub::{ModelFormat, Name};
use serde_json::Value;

use super::GAMMA_MAX;

/// A draft model has at most this share of its target's parameters; a larger one gains little.
const SHARE_MAX: f64 = 1.0 / 3.0;
/// Of several, the largest with at most this share is proposed: it guesses best, and is still cheap.
const SMALL_SHARE_MAX: f64 = 1.0 / 20.0;

/// The assumed acceptance rate of a draft model of the family, which depends on the text.
const ACCEPTANCE: f64 = 0.7;
/// That of a model with another vocabulary, whose tokens do not always end where the target's do.
const ACCEPTANCE_TRANSLATED: f64 = 0.5;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| read(include_str!("drafts.json")).expect("the table is part of the program"));

struct Table {
    families: Vec<Family>,
    assistants: Vec<Member>,
}

/// Models of one vocabulary.
struct Family {
    members: Vec<Member>,
}

struct Member {
    /// The repository with safetensors.
    repo: Name,
    /// The repository with GGUF files, if there is one.
    gguf: Option<Name>,
    /// Billions of parameters.
    parameters: f64,
    /// Whether it is made for programs.
    is_coder: bool,
}

/// A draft model for a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Its name.
    pub name: Name,
    /// Its parameters over those of the target.
    pub share: f64,
    /// Whether it has another vocabulary than the target.
    pub is_translated: bool,
    /// Which fraction of its tokens is assumed to be accepted.
    pub acceptance: f64,
}

impl Proposal {
    fn new(member: &Member, share: f64, kind: &ModelFormat, is_translated: bool) -> Self {
        let name = match kind {
            ModelFormat::Gguf(_) => member.gguf.as_ref().unwrap_or(&member.repo),
            ModelFormat::Safetensors => &member.repo,
        };
        let acceptance = if is_translated { ACCEPTANCE_TRANSLATED } else { ACCEPTANCE };
        Self { name: name.clone(), share, is_translated, acceptance }
    }

    /// The expected speedup, if a step costs as much as its share of the parameters.
    fn speedup(&self) -> f64 {
        best_gamma(self.acceptance, self.share, GAMMA_MAX).speedup
    }
}

fn read(text: &str) -> Result<Table, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let name = |value: &Value| {
        let text = value.as_str().ok_or("expected a name")?;
        text.parse::<Name>().map_err(|error| error.to_string())
    };
    let member = |value: &Value| {
        Ok(Member {
            repo: name(&value["repo"])?,
            gguf: value.get("gguf").map(name).transpose()?,
            parameters: value["billions"].as_f64().ok_or("billions: expected a number")?,
            is_coder: value["coder"].as_bool().unwrap_or(false),
        })
    };
    let members = |list: &Value| -> Result<Vec<Member>, String> {
        list.as_array().ok_or("expected a list of models")?.iter().map(member).collect()
    };
    let families = value["families"].as_array().ok_or("families: expected a list")?.iter();
    let families = families.map(|family| Ok(Family { members: members(&family["members"])? }));
    Ok(Table { families: families.collect::<Result<_, String>>()?, assistants: members(&value["assistants"])? })
}

/// The draft model for a target of this many billions of parameters, which are needed if its family is unknown; `None`
/// if no known model is small enough.
pub fn proposal(target: &Name, kind: &ModelFormat, parameters: Option<f64>) -> Option<Proposal> {
    let requested = base_name(&target.repository);
    // Converters may put the owner before the name: `Qwen_Qwen3-8B-GGUF`.
    let is_target = |member: &&Member| {
        let before = requested.strip_suffix(base_name(&member.repo.repository).as_str());
        before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
    };
    let families = &TABLE.families;
    let found = families.iter().find_map(|family| Some((family, family.members.iter().find(is_target)?)));
    let parameters =
        found.map(|(_, member)| member.parameters).or(parameters).filter(|parameters| *parameters > 0.0)?;
    let share = |member: &Member| member.parameters / parameters;
    let relative = found.and_then(|(family, _)| {
        let mut small: Vec<&Member> = family.members.iter().filter(|member| share(member) <= SHARE_MAX).collect();
        small.sort_by(|a, b| a.parameters.total_cmp(&b.parameters));
        let member = small.iter().rfind(|member| share(member) <= SMALL_SHARE_MAX).or(small.first())?;
        Some(Proposal::new(member, share(member), kind, false))
    });
    let is_coder = requested.contains("code");
    let cheap = |member: &&Member| share(member) <= SMALL_SHARE_MAX && (is_coder || !member.is_coder);
    let order = |a: &&Member, b: &&Member| a.is_coder.cmp(&b.is_coder).then(a.parameters.total_cmp(&b.parameters));
    let assistant = TABLE.assistants.iter().filter(cheap).max_by(order);
    let assistant = assistant.map(|member| Proposal::new(member, share(member), kind, true));
    let faster = |first: Proposal, other: Proposal| if other.speedup() > first.speedup() { other } else { first };
    relative.into_iter().chain(assistant).reduce(faster)
}

/// A repository's name without what converters of models add to it.
fn base_name(repository: &str) -> String {
    let name = repository.to_lowercase();
    let name = ["-gguf", "-qat-q4_0"].iter().fold(name.as_str(), |name, end| name.trim_end_matches(end));
    name.trim_start_matches("meta-").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(target: &str, kind: &ModelFormat) -> Option<String> {
        let name = target.parse().expect("a name");
        proposal(&name, kind, None).map(|proposal| proposal.name.to_string())
    }

    #[test]
    fn the_table_can_be_read_and_names_each_model_once() {
        let table = read(include_str!("drafts.json")).expect("it can be read");
        let mut names: Vec<String> = Vec::new();
        for family in &table.families {
            assert!(family.members.len() > 1 && family.members.iter().all(|member| member.parameters > 0.0));
            names.extend(family.members.iter().map(|member| base_name(&member.repo.repository)));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_draft_has_the_same_family_and_format() {
        let gguf = ModelFormat::Gguf("Q4_K_M".to_string());
        assert_eq!(proposed("Qwen/Qwen3-8B", &ModelFormat::Safetensors).as_deref(), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(proposed("unsloth/Qwen3-8B-GGUF", &gguf).as_deref(), Some("Qwen/Qwen3-0.6B-GGUF"));
        assert_eq!(proposed("bartowski/Qwen_Qwen3-32B-GGUF:q4_k_m", &gguf).as_deref(), Some("Qwen/Qwen3-0.6B-GGUF"));
        let llama = proposed("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", &gguf);
        assert_eq!(llama.as_deref(), Some("bartowski/Llama-3.2-1B-Instruct-GGUF"));
        let llama = proposed("bartowski/meta-llama_Llama-3.3-70B-Instruct-GGUF", &gguf);
        assert_eq!(llama.as_deref(), Some("bartowski/Llama-3.2-3B-Instruct-GGUF"));
        // The smallest of a family has no draft model, nor has a model without a family.
        for alone in ["Qwen/Qwen3-0.6B", "demo/target"] {
            assert_eq!(proposed(alone, &ModelFormat::Safetensors), None, "{alone}");
        }
    }

    #[test]
    fn a_model_of_another_vocabulary_drafts_where_the_family_has_none_that_is_small_enough() {
        let folder = ModelFormat::Safetensors;
        // Its family's smallest is more than a third of it.
        assert_eq!(proposed("Qwen/Qwen3-1.7B", &folder).as_deref(), Some("double7/vicuna-68m"));
        // The 2B model of its family is too big for the 9B model, as Universal Assisted Generation found.
        assert_eq!(proposed("google/gemma-2-9b", &folder).as_deref(), Some("HuggingFaceTB/SmolLM2-360M-Instruct"));
        let name = |text: &str| text.parse().expect("a name");
        let of_unknown = |text: &str, billions| proposal(&name(text), &folder, Some(billions));
        let assistant = of_unknown("codellama/CodeLlama-13b-Instruct-hf", 13.0).expect("one is small enough");
        assert_eq!(assistant.name.to_string(), "Qwen/Qwen2.5-Coder-0.5B-Instruct");
        assert!(assistant.is_translated && assistant.share < SMALL_SHARE_MAX);
        let assistant = of_unknown("mistralai/Mistral-7B-Instruct-v0.3", 7.25).expect("one is small enough");
        assert_eq!(assistant.name.to_string(), "HuggingFaceTB/SmolLM2-360M-Instruct");
        let assistant = of_unknown("a/small", 1.5).expect("one is small enough");
        assert_eq!(assistant.name.to_string(), "double7/vicuna-68m");
        assert_eq!(of_unknown("a/smaller", 1.0), None);
    }
}
