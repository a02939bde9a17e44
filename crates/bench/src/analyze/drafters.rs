//! The drafters that are analyzed, those of Leviathan et al. 2023 (sections 3.6 and 4.2): a draft model, a unigram and
//! a bigram model, copies from the context, and random tokens.
//!
//! The draft model is the library's. The others are created here, since the library has one n-gram model per engine and
//! this command needs two. They draft at every position, which rarely pays.

use foretoken::Generator;
use foretoken::drafters::DrafterSettings;
use foretoken::generator::KeptTexts;
use foretoken::settings::{MemorySettings, NamedValue, NgramSource, OneOf};
use foretoken_console::failure::Failure;
use foretoken_drafters::{NgramDrafter, RandomDrafter, SuffixDrafter};
use foretoken_speculation::Drafter;

/// A drafter that is analyzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnalyzedDrafter {
    /// The draft model.
    Draft,
    /// The most frequent tokens.
    Unigram,
    /// The tokens that followed the last one most often.
    Bigram,
    /// What followed the latest longest match of the last tokens, in the text or in the source of an encoder.
    Lookup,
    /// Random tokens.
    Random,
}

impl OneOf for AnalyzedDrafter {
    const VALUES: &'static [NamedValue<Self>] = &[
        NamedValue::new(Self::Draft, &["draft"], "The draft model"),
        NamedValue::new(Self::Unigram, &["unigram"], "The most frequent tokens"),
        NamedValue::new(Self::Bigram, &["bigram"], "The tokens that followed the last one most often"),
        NamedValue::new(Self::Lookup, &["lookup"], "Copies of what followed the last tokens before"),
        NamedValue::new(Self::Random, &["random"], "Random tokens"),
    ];
}

/// Adds drafters of chains of up to `depth_max` tokens to a generator that was opened with the draft model, if that is
/// among them, and lets them learn the texts of `memory`. Returns their numbers. What n-gram models count, and the
/// longest match of copies, are settings.
///
/// # Errors
/// As [`KeptTexts::load`].
pub fn add(
    generator: &mut Generator,
    drafters: &[AnalyzedDrafter],
    depth_max: usize,
    DrafterSettings { ngram, lookup, .. }: &DrafterSettings,
    memory: &MemorySettings,
) -> Result<Vec<u8>, Failure> {
    let mut numbers: Vec<u8> = Vec::with_capacity(drafters.len());
    for drafter in drafters {
        let added: Box<dyn Drafter> = match drafter {
            AnalyzedDrafter::Draft => {
                numbers.extend(&generator.prompter.methods[0].drafters);
                continue;
            }
            AnalyzedDrafter::Unigram => Box::new(of_ngrams(1, depth_max, ngram.source)),
            AnalyzedDrafter::Bigram => Box::new(of_ngrams(2, depth_max, ngram.source)),
            AnalyzedDrafter::Lookup => Box::new(SuffixDrafter::lookup_chain(1, lookup.ngram_max, depth_max)),
            AnalyzedDrafter::Random => {
                let mut drafter = RandomDrafter::new(generator.prompter.tokens());
                drafter.nodes_max = depth_max;
                Box::new(drafter)
            }
        };
        numbers.push(generator.engine.add_drafter(added));
    }
    generator.kept_texts = KeptTexts::load(memory, generator.prompter.tokenizer.as_deref(), &mut generator.engine)?;
    Ok(numbers)
}

/// A model of n-grams that drafts whenever it has counted anything.
fn of_ngrams(order: usize, depth_max: usize, source: NgramSource) -> NgramDrafter {
    let mut drafter = NgramDrafter::new(order, source);
    (drafter.depth_max, drafter.unigram_min) = (depth_max, 0.0);
    drafter
}
