//! Options of the single drafters, by the names that papers, transformers and llama.cpp gave them.
//!
//! Defaults are those of the library's settings, which a test checks; they are repeated here for the help. Options that
//! all drafters share are in `speculation.rs`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use foretoken::settings::{
    BranchSource, DrafterSettings, JacobiSettings, Layout, LlmaSettings, LookupSettings, MemorySettings, NgramSettings,
    NgramSource, SuffixSettings, TrieSettings,
};

use crate::values;

/// Options of all drafters that need no model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct DrafterOptions {
    /// lookup, trie, suffix, prediction: a token whose estimated acceptance is less than this is not proposed [default:
    /// where it does not pay; 0.1 with budgets that ignore costs; 0 in bench replay, where rows cost nothing]; ignored
    /// by lookup with --prompt-lookup-candidates 1
    #[arg(long, value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
    pub spec_gain_min: Option<f32>,
    /// Options of lookup.
    #[command(flatten)]
    pub lookup: LookupOptions,
    /// Options of llma.
    #[command(flatten)]
    pub llma: LlmaOptions,
    /// Options of trie.
    #[command(flatten)]
    pub trie: TrieOptions,
    /// Options of suffix.
    #[command(flatten)]
    pub suffix: SuffixOptions,
    /// Options of ngram.
    #[command(flatten)]
    pub ngram: NgramOptions,
    /// Options of jacobi.
    #[command(flatten)]
    pub jacobi: JacobiOptions,
    /// phrases: the file of phrases, one on each line, the most important first
    #[arg(long, value_name = "FILE")]
    pub phrases: Option<PathBuf>,
}

impl DrafterOptions {
    /// The library's settings.
    pub fn settings(&self) -> DrafterSettings {
        let Self { lookup, llma, trie, suffix, ngram, jacobi, .. } = self;
        let (layout, source) = trie.decoding_mode;
        DrafterSettings {
            gain_min: self.spec_gain_min,
            lookup: LookupSettings {
                ngram_max: lookup.max_matching_ngram_size,
                nodes_max: lookup.prompt_lookup_num_tokens,
                candidates: lookup.prompt_lookup_candidates,
            },
            llma: LlmaSettings { run_min: llma.llma_match, nodes_max: llma.llma_copy },
            trie: TrieSettings {
                nodes_max: trie.decoding_length,
                branch_length: trie.branch_length,
                layout,
                source,
                capacity: trie.trie_capacity,
            },
            suffix: SuffixSettings {
                nodes_max: suffix.suffix_num_tokens,
                depth_max: suffix.suffix_max_tree_depth,
                depth_factor: suffix.suffix_max_spec_factor,
                token_min: suffix.suffix_min_token_prob,
                capacity: suffix.suffix_capacity,
            },
            ngram: NgramSettings {
                order: ngram.ngram_order,
                source: ngram.ngram_source.into(),
                depth_max: ngram.ngram_num_tokens,
                branches_max: ngram.ngram_branches,
            },
            jacobi: JacobiSettings {
                window: jacobi.lookahead_window,
                level: jacobi.lookahead_level,
                guesses: jacobi.lookahead_guesses,
            },
            phrases: self.phrases.clone(),
        }
    }
}

/// Texts that drafters learn before a run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Texts for drafters")]
pub struct MemoryOptions {
    /// Texts that drafters learn before the first prompt: a file that `foretoken lookup build` wrote
    #[arg(long, value_name = "FILE")]
    pub lookup_cache_static: Option<PathBuf>,
    /// The same with the texts of earlier runs, read if it exists; generate and chat add theirs, check and bench only
    /// read it. Under --verify rejection or block each run then generates other texts, also for the same seed
    #[arg(long, value_name = "FILE")]
    pub lookup_cache_dynamic: Option<PathBuf>,
    /// Most tokens kept in that file, those of the newest texts; a file that has more is refused
    #[arg(long, value_name = "N", default_value = "1048576",
        value_parser = values::one_up, allow_negative_numbers = true)]
    pub lookup_cache_tokens: usize,
}

impl MemoryOptions {
    /// The library's settings, with texts of earlier runs for requests of their own tenant.
    pub fn settings(&self) -> MemorySettings {
        MemorySettings {
            lookup_cache_static: self.lookup_cache_static.clone(),
            lookup_cache_dynamic: self.lookup_cache_dynamic.clone(),
            lookup_cache_tokens: self.lookup_cache_tokens,
            shared: false,
        }
    }
}

/// Options of lookup.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct LookupOptions {
    /// lookup: longest suffix of the text that is searched for
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::run_len, allow_negative_numbers = true)]
    pub max_matching_ngram_size: usize,
    /// lookup: most tokens proposed in a pass
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::one_up, allow_negative_numbers = true)]
    pub prompt_lookup_num_tokens: usize,
    /// lookup: most matches whose continuations form the tree; 1 proposes a chain, as other programs do
    #[arg(long, value_name = "N", default_value = "32", value_parser = values::one_up, allow_negative_numbers = true)]
    pub prompt_lookup_candidates: usize,
}

/// Options of span copying.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct LlmaOptions {
    /// llma: how many of the answer's last tokens must occur in the prompt, n of the paper
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::run_len, allow_negative_numbers = true)]
    pub llma_match: usize,
    /// llma: most tokens copied in a pass, k of the paper
    #[arg(long, value_name = "N", default_value = "7", value_parser = values::one_up, allow_negative_numbers = true)]
    pub llma_copy: usize,
}

/// Options of the trie.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct TrieOptions {
    /// trie: most tokens proposed in a pass, in all branches together
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::one_up, allow_negative_numbers = true)]
    pub decoding_length: usize,
    /// trie: tokens of a branch
    #[arg(long, value_name = "N", default_value = "12",
        value_parser = values::branch_length, allow_negative_numbers = true)]
    pub branch_length: usize,
    /// trie: branches merged by common prefixes, in parallel, or a single one (hier, par, one), from prompts, outputs
    /// or both (input, output, mix)
    #[arg(long, value_name = "LAYOUT-TEXTS", default_value = "hier-mix", value_parser = values::decoding_mode)]
    pub decoding_mode: (Layout, BranchSource),
    /// trie: most nodes kept below each first token when a text has ended [default: 16 times the decoding length]
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    pub trie_capacity: Option<usize>,
}

/// Options of suffix matching.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct SuffixOptions {
    /// suffix: most tokens proposed in a pass, in all branches together
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::one_up, allow_negative_numbers = true)]
    pub suffix_num_tokens: usize,
    /// suffix: most tokens of a branch
    #[arg(long, value_name = "N", default_value = "24", value_parser = values::one_up, allow_negative_numbers = true)]
    pub suffix_max_tree_depth: usize,
    /// suffix: most tokens of a branch for each token that matched (and 8 more in any case)
    #[arg(long, value_name = "X", default_value = "2", value_parser = values::zero_up, allow_negative_numbers = true)]
    pub suffix_max_spec_factor: f32,
    /// suffix: no token that is less probable than this after its parent
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::fraction, allow_negative_numbers = true)]
    pub suffix_min_token_prob: f32,
    /// suffix: most tokens of other texts that are kept
    #[arg(long, value_name = "N", default_value = "1000000",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub suffix_capacity: usize,
}

/// What n-gram models count, as `--ngram-source` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NgramTexts {
    /// Other texts, and those of earlier runs.
    Corpus,
    /// The running text, prompt included.
    Text,
    /// Both.
    Both,
}

impl From<NgramTexts> for NgramSource {
    fn from(texts: NgramTexts) -> Self {
        match texts {
            NgramTexts::Corpus => Self::Corpus,
            NgramTexts::Text => Self::Text,
            NgramTexts::Both => Self::Both,
        }
    }
}

/// Options of n-gram models.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct NgramOptions {
    /// ngram: length of the longest n-gram that is counted, including the proposed token; 1 proposes the most frequent
    /// tokens in any context
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::order, allow_negative_numbers = true)]
    pub ngram_order: usize,
    /// ngram: what is counted: corpus, text or both
    #[arg(long, value_name = "TEXTS", default_value = "both", hide_possible_values = true)]
    pub ngram_source: NgramTexts,
    /// ngram: most tokens of a branch
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::one_up, allow_negative_numbers = true)]
    pub ngram_num_tokens: usize,
    /// ngram: most tokens proposed at one position, where --spec-draft-p-split allows it
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::one_up, allow_negative_numbers = true)]
    pub ngram_branches: usize,
}

/// Options of Jacobi lookahead.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafters")]
pub struct JacobiOptions {
    /// jacobi: columns of the window, W; a pass has about W (N - 1) rows for it
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::small, allow_negative_numbers = true)]
    pub lookahead_window: usize,
    /// jacobi: tokens of an n-gram, N
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::level, allow_negative_numbers = true)]
    pub lookahead_level: usize,
    /// jacobi: most n-grams verified in a pass, G
    #[arg(long, value_name = "N", default_value = "2", value_parser = values::small, allow_negative_numbers = true)]
    pub lookahead_guesses: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        own: DrafterOptions,
        #[command(flatten)]
        memory: MemoryOptions,
    }

    #[test]
    fn defaults_are_the_librarys() {
        let Line { own, memory } = Line::parse_from(["line"]);
        assert_eq!(own.settings(), DrafterSettings::default());
        assert_eq!(memory.settings(), MemorySettings::default());
    }
}
