//! Names of models: `org/name`, followed by `:QUANT` and `@REVISION` in either order.
//!
//! The hub's rules decide which names are valid: letters, digits, `.`, `_` and `-`, neither `.` nor `-` at an end, and
//! no `--` or `..` within, so that a name can be a folder's name as well (`models--org--name`).

use std::fmt;
use std::str::FromStr;

use crate::error::{HubError, excerpt};

/// Maximum number of characters of a part of a name.
const PART_MAX: usize = 96;
/// Maximum number of characters of a revision.
const REVISION_MAX: usize = 200;

/// The name of a model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its user or organisation.
    pub owner: String,
    /// Its repository.
    pub repository: String,
    /// A branch, a tag or a commit; `None` for `main`.
    pub revision: Option<String>,
    /// Which of its GGUF files, by quantization.
    pub quant: Option<String>,
}

impl Name {
    /// `org/name`.
    pub fn repo(&self) -> String {
        format!("{}/{}", self.owner, self.repository)
    }

    /// The revision, or `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Whether a word looks like a name: one slash between two valid parts. `./model`, `/a/model` and `a/b/c` cannot,
    /// nor can a file of weights, which is a path.
    pub fn is_like(word: &str) -> bool {
        let is_file = [".gguf", ".safetensors"].iter().any(|ending| word.to_lowercase().ends_with(ending));
        !is_file && word.parse::<Self>().is_ok()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repository)?;
        self.quant.iter().try_for_each(|quant| write!(f, ":{quant}"))?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

impl FromStr for Name {
    type Err = HubError;

    fn from_str(word: &str) -> Result<Self, HubError> {
        let wrong = || {
            let found = excerpt(word);
            HubError::Usage(format!("expected org/name, org/name:QUANT or org/name@REVISION, found \"{found}\""))
        };
        let end = word.find([':', '@']).unwrap_or(word.len());
        let (repo, mut rest) = word.split_at(end);
        let (owner, repository) = repo.split_once('/').ok_or_else(wrong)?;
        let (mut revision, mut quant) = (None, None);
        while let Some(mark) = rest.chars().next() {
            let end = rest[1..].find([':', '@']).map_or(rest.len(), |at| at + 1);
            let (part, behind) = (&rest[1..end], &rest[end..]);
            let place = if mark == '@' { &mut revision } else { &mut quant };
            let is_legal = if mark == '@' { is_revision(part) } else { is_quant(part) };
            if !is_legal || place.replace(part.to_string()).is_some() {
                return Err(wrong());
            }
            rest = behind;
        }
        if !is_part(owner) || !is_part(repository) {
            return Err(wrong());
        }
        Ok(Self { owner: owner.to_string(), repository: repository.to_string(), revision, quant })
    }
}

fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Whether an owner or a repository can have this name.
pub(crate) fn is_part(part: &str) -> bool {
    let ends = |c: char| matches!(c, '.' | '-');
    (1..=PART_MAX).contains(&part.len())
        && part.chars().all(is_letter)
        && !part.starts_with(ends)
        && !part.ends_with(ends)
        && !part.contains("--")
        && !part.contains("..")
}

/// Whether a branch, tag or commit can have this name (`main`, `v1.0`, `refs/pr/3`).
pub(crate) fn is_revision(text: &str) -> bool {
    let is_piece = |piece: &str| !piece.is_empty() && piece.chars().all(is_letter) && !piece.starts_with('.');
    text.len() <= REVISION_MAX && text.split('/').all(is_piece) && !text.contains("..")
}

fn is_quant(text: &str) -> bool {
    (1..=PART_MAX).contains(&text.len()) && text.chars().all(is_letter)
}

/// Whether this is a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_quant_and_a_revision_in_either_order() {
        let name: Name = "Qwen/Qwen3-8B-GGUF:q4_k_m@refs/pr/3".parse().expect("a name");
        assert_eq!((name.repo().as_str(), name.revision()), ("Qwen/Qwen3-8B-GGUF", "refs/pr/3"));
        assert_eq!(name.quant.as_deref(), Some("q4_k_m"));
        assert_eq!(Ok(name.clone()), "Qwen/Qwen3-8B-GGUF@refs/pr/3:q4_k_m".parse());
        assert_eq!(name.to_string(), "Qwen/Qwen3-8B-GGUF:q4_k_m@refs/pr/3");
        let plain: Name = "a/b_c.d-e".parse().expect("a name");
        assert_eq!((plain.revision(), &plain.quant), ("main", &None));
    }

    #[test]
    fn invalid_names_are_refused_in_one_line() {
        let long = format!("a/{}", "b".repeat(97));
        for word in [
            "",
            "a",
            "/a",
            "a/",
            "a/b/c",
            "./b",
            "../b",
            "a/..",
            "a/.b",
            "-a/b",
            "a--b/c",
            "a/b..c",
            "a b/c",
            "a/b:",
            "a/b@",
            "a/b@..",
            "a/b@x/../y",
            "a/b@/x",
            "a/b:q/r",
            "a/b:q:r",
            "a/b@x@y",
            "a/b\n",
            "ä/b",
            "C:\\x/y",
            &long,
        ] {
            let Err(HubError::Usage(line)) = word.parse::<Name>() else { panic!("{word:?} is taken for a name") };
            assert!(line.starts_with("expected org/name") && !line.contains('\n'), "{line}");
            assert!(!Name::is_like(word));
        }
        assert!(!Name::is_like("models/small.gguf") && !Name::is_like("a/b.safetensors") && Name::is_like("a/b.c"));
    }
}
