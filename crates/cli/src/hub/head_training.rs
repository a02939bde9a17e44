//! What training a draft head would gain for a model without a known draft model (`training/README.md`): the expected
//! speedup, how long training takes on this machine, and the commands.
//!
//! Times follow from the measured passes of the model, if it has run here. The gain is that of Theorem 3.8
//! ([`foretoken::theory`]) with the acceptance rate of the head of SmolLM2-135M-Instruct, which was trained by the same
//! recipe. The recipe also distils draft models, which are not estimated here.

use std::path::Path;

use foretoken::models::Opened;
use foretoken::theory::best_gamma;

use super::GAMMA_MAX;

/// Families whose heads can be trained: those whose logits `training/target.py` computes from a hidden state (`PLAIN`).
const FAMILIES: [&str; 10] =
    ["arcee", "llama", "mistral", "mistral3", "olmo2", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3"];
/// The tokens of the model's own texts that a head learns from, and the number of epochs.
const TOKENS: f64 = 1e6;
const EPOCHS: f64 = 4.0;
/// Rows computed per token of an answer: prompts are about as long as answers.
const ROWS_PER_TOKEN: f64 = 2.0;
/// Vocabulary of a head.
const DRAFT_VOCABULARY: usize = 8192;
/// Bytes per weight in Q8_0.
const BYTES_PER_WEIGHT: f64 = 34.0 / 32.0;
/// Multiplications and additions per token and weight of the head: five steps, forward and backward.
const OPERATIONS_PER_WEIGHT: f64 = 20.0;
/// Operations per second of training over those of passes: training computes in floats, not in blocks of integers.
const TRAINING_SPEED: f64 = 0.5;
/// The assumed acceptance rate of a head: that of the first guesses of SmolLM2's head, greedy, on questions unlike its
/// training texts.
const ACCEPTANCE: f64 = 0.45;

/// Weights of an EAGLE-3 head of the target's shape: the fusion, a layer that reads twice the width, the output.
fn weights(spec: &foretoken::models::Spec) -> usize {
    let width = spec.width;
    let (queries, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let layer = 2 * width * (queries + 2 * kv) + queries * width + 3 * width * spec.ffn_width;
    3 * width * width + layer + DRAFT_VOCABULARY.min(spec.vocabulary) * width
}

/// Lines about a head for this model, `name` as requested with `option` (`-m`, `-hf`), whose files are at `path`.
/// `None` if no head can be trained for it.
pub fn lines(opened: &Opened, option: &str, name: &str, path: &Path) -> Option<String> {
    let spec = &opened.spec;
    if !FAMILIES.contains(&spec.family) || spec.experts.is_some() {
        return None;
    }
    let head = weights(spec) as f64;
    let parameters = opened.checkpoint.parameters() as f64;
    let time = match foretoken::measured_rows_per_second(path) {
        Some(rows) => {
            let texts = 2.0 * ROWS_PER_TOKEN * TOKENS / rows;
            let training = EPOCHS * TOKENS * OPERATIONS_PER_WEIGHT * head / (TRAINING_SPEED * 2.0 * parameters * rows);
            format!(
                "about {} for {} million tokens of its own and their hidden states, and {} of training, by what its \
                 passes took here",
                duration(texts),
                TOKENS / 1e6,
                duration(training)
            )
        }
        None => "how long it takes is said here once the model has run on this machine".to_string(),
    };
    let cost = head * BYTES_PER_WEIGHT / opened.weights_bytes().max(1) as f64;
    let best = best_gamma(ACCEPTANCE, cost, GAMMA_MAX);
    let assumed = format!("if {:.0} % of its tokens are accepted", 100.0 * ACCEPTANCE);
    let speed = match best.speedup > 1.0 {
        true => format!("about {:.1} times as fast with {} tokens a pass, {assumed}", best.speedup, best.gamma),
        false => format!("not faster, even {assumed}"),
    };
    let path = path.display();
    Some(format!(
        "draft head: one can be trained for it ({time}): {speed}, which is assumed (a step costs {cost:.3} passes by \
         size); the recipe is training/README.md of foretoken's repository\n  foretoken generate {option} {name} \
         --chat --prompts PROMPTS.jsonl -np 32 -n 256 --temp 1 --json --resume texts.jsonl\n  foretoken hidden \
         {option} {name} --texts texts.jsonl -o rows\n  python3 training/head.py train --hidden rows --target {path} \
         --out run\n  python3 training/head.py export --run run --target {path} --gguf head.gguf"
    ))
}

/// A duration in words, at least two minutes, since it is an estimate.
fn duration(seconds: f64) -> String {
    match seconds / 60.0 {
        minutes if minutes < 90.0 => format!("{:.0} minutes", minutes.max(2.0)),
        minutes => format!("{:.0} hours", minutes / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_equal_those_of_the_training_script() {
        let source = include_str!("../../../../training/target.py");
        let list = source.split_once("PLAIN = {").and_then(|(_, rest)| rest.split_once('}')).expect("it has a list").0;
        let mut named: Vec<&str> = list.split(',').map(|name| name.trim().trim_matches('"')).collect();
        named.sort_unstable();
        assert_eq!(named, FAMILIES);
    }

    #[test]
    fn durations_are_in_minutes_or_hours() {
        assert_eq!([duration(20.0), duration(3000.0), duration(7200.0)], ["2 minutes", "50 minutes", "2 hours"]);
    }
}
