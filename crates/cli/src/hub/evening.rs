//! What an evening would gain for a model that no draft model is known for: a draft head that is trained for it
//! (`training/README.md`), how long that takes on this machine, and the commands.
//!
//! Times follow from what the model's passes took here, if it has run; the gain is Theorem 3.8's (`estimate.rs`) with
//! the acceptance that the head of SmolLM2-135M-Instruct has, which was trained by the same recipe. Left out: draft
//! models that are distilled, which the recipe makes as well.

use std::path::Path;

use foretoken::models::Opened;

use super::estimate::best;

/// Families whose heads can be trained: those whose logits `training/target.py` computes from a hidden state (`PLAIN`).
const FAMILIES: [&str; 10] =
    ["arcee", "llama", "mistral", "mistral3", "olmo2", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3"];
/// The model's own tokens that a head learns from, and how often it goes through them.
const TOKENS: f64 = 1e6;
const TIMES: f64 = 4.0;
/// Rows for a token of a text: prompts are about as long as answers.
const ROWS: f64 = 2.0;
/// Tokens of a head's output.
const DRAFT_VOCABULARY: usize = 8192;
/// Bytes of a weight in Q8_0.
const BYTES: f64 = 34.0 / 32.0;
/// Multiplications and additions for a token, over the head's weights: five steps, forward and backward.
const OPERATIONS: f64 = 20.0;
/// What training does in a second over what passes do: floats, not blocks of integers.
const SPEED: f64 = 0.5;
/// The part of a head's guesses that is accepted: first ones of SmolLM2's head on questions unlike its texts, greedily.
const ACCEPTANCE: f64 = 0.45;

/// Weights of a head of a target's own shape (EAGLE-3): the fusion, a layer that reads twice the width, the output.
fn weights(spec: &foretoken::models::Spec) -> usize {
    let width = spec.width;
    let (queries, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let layer = 2 * width * (queries + 2 * kv) + queries * width + 3 * width * spec.ffn_width;
    3 * width * width + layer + DRAFT_VOCABULARY.min(spec.vocabulary) * width
}

/// Lines about a head for this model: `name` as it was asked for behind `way` (`-m`, `-hf`); `path`: its files. None
/// where it cannot be trained.
pub fn lines(opened: &Opened, way: &str, name: &str, path: &Path) -> Option<String> {
    let spec = &opened.spec;
    if !FAMILIES.contains(&spec.family) || spec.experts.is_some() {
        return None;
    }
    let head = weights(spec) as f64;
    let parameters = opened.checkpoint.parameters() as f64;
    let time = match foretoken::measured_rows_per_second(path) {
        Some(rows) => {
            let texts = 2.0 * ROWS * TOKENS / rows;
            let training = TIMES * TOKENS * OPERATIONS * head / (SPEED * 2.0 * parameters * rows);
            format!(
                "about {} for {} million tokens of its own and their hidden states, and {} of training, by what its \
                 passes took here",
                hours(texts),
                TOKENS / 1e6,
                hours(training)
            )
        }
        None => "how long it takes is said here once the model has run on this machine".to_string(),
    };
    let cost = head * BYTES / opened.weights_bytes().max(1) as f64;
    let gain = best(ACCEPTANCE, cost);
    let assumed = format!("if {:.0} % of its tokens are accepted", 100.0 * ACCEPTANCE);
    let worth = match gain.gain > 1.0 {
        true => format!("about {:.1} times as fast with {} tokens a pass, {assumed}", gain.gain, gain.gamma),
        false => format!("not faster, even {assumed}"),
    };
    let path = path.display();
    Some(format!(
        "draft head: one can be trained for it ({time}): {worth}, which is assumed (a step costs {cost:.3} passes by \
         size); the recipe is training/README.md of foretoken's repository\n  foretoken generate {way} {name} --chat \
         --prompts PROMPTS.jsonl -np 32 -n 256 --temp 1 --json --resume texts.jsonl\n  foretoken hidden {way} {name} \
         --texts texts.jsonl -o rows\n  python3 training/head.py train --hidden rows --target {path} --out run\n  \
         python3 training/head.py export --run run --target {path} --gguf head.gguf"
    ))
}

/// A time as one says it: never less than two minutes, for it is an estimate.
fn hours(seconds: f64) -> String {
    match seconds / 60.0 {
        minutes if minutes < 90.0 => format!("{:.0} minutes", minutes.max(2.0)),
        minutes => format!("{:.0} hours", minutes / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_those_that_training_takes() {
        let source = include_str!("../../../../training/target.py");
        let list = source.split_once("PLAIN = {").and_then(|(_, rest)| rest.split_once('}')).expect("it has a list").0;
        let mut named: Vec<&str> = list.split(',').map(|name| name.trim().trim_matches('"')).collect();
        named.sort_unstable();
        assert_eq!(named, FAMILIES);
    }

    #[test]
    fn times_are_said_as_one_says_them() {
        assert_eq!([hours(20.0), hours(3000.0), hours(7200.0)], ["2 minutes", "50 minutes", "2 hours"]);
    }
}
