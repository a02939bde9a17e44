//! Draft models of a model's family.
//!
//! The table of families is the data file `drafts.json`: models of one vocabulary, which can draft for each other, with
//! their sizes.

use std::sync::LazyLock;

use foretoken_hub::{ModelFormat, Name};
use serde_json::Value;

/// A draft model has at most this share of its target's parameters; a larger one gains little.
const SHARE_MAX: f64 = 1.0 / 3.0;
/// Of several, the largest with at most this share is proposed: it guesses best, and is still cheap.
const SMALL_SHARE_MAX: f64 = 1.0 / 20.0;

static TABLE: LazyLock<Vec<Family>> =
    LazyLock::new(|| read(include_str!("drafts.json")).expect("the table is part of the program"));

/// Models of one vocabulary.
struct Family {
    members: Vec<Member>,
}

struct Member {
    /// The repository in safetensors, and the one in GGUF if there is one.
    repo: Name,
    gguf: Option<Name>,
    /// Billions of parameters.
    parameters: f64,
}

/// A draft model for a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Its name.
    pub name: Name,
    /// Its parameters over those of the target.
    pub share: f64,
}

fn read(text: &str) -> Result<Vec<Family>, String> {
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
        })
    };
    let family = |value: &Value| {
        let members = value["members"].as_array().ok_or("members: expected a list")?;
        Ok(Family { members: members.iter().map(member).collect::<Result<_, String>>()? })
    };
    value.as_array().ok_or("expected a list")?.iter().map(family).collect()
}

/// The draft model of a target's family, if the family is known and has one that is small enough.
pub fn proposal(target: &Name, kind: &ModelFormat) -> Option<Proposal> {
    let requested = base_name(&target.repository);
    // Converters may put the owner before the name: `Qwen_Qwen3-8B-GGUF`.
    let is_target = |member: &&Member| {
        let before = requested.strip_suffix(base_name(&member.repo.repository).as_str());
        before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
    };
    let (family, target) = TABLE.iter().find_map(|family| Some((family, family.members.iter().find(is_target)?)))?;
    let share = |member: &Member| member.parameters / target.parameters;
    let mut small: Vec<&Member> = family.members.iter().filter(|member| share(member) <= SHARE_MAX).collect();
    small.sort_by(|a, b| a.parameters.total_cmp(&b.parameters));
    let cheap = small.iter().rfind(|member| share(member) <= SMALL_SHARE_MAX);
    let member = cheap.or(small.first())?;
    let name = match kind {
        ModelFormat::Gguf(_) => member.gguf.as_ref().unwrap_or(&member.repo),
        ModelFormat::Safetensors => &member.repo,
    };
    Some(Proposal { name: name.clone(), share: share(member) })
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
        proposal(&name, kind).map(|proposal| proposal.name.to_string())
    }

    #[test]
    fn the_table_can_be_read_and_names_each_model_once() {
        let families = read(include_str!("drafts.json")).expect("it can be read");
        let mut names: Vec<String> = Vec::new();
        for family in &families {
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
        for alone in ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "demo/target"] {
            assert_eq!(proposed(alone, &ModelFormat::Safetensors), None, "{alone}");
        }
    }
}
