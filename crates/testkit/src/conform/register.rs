//! The register of drafters: a drafter that is added here, with the settings that matter, is tested by the whole
//! conformance suite.

use foretoken_drafters::{BranchSource, Layout, RetrievalRule, TrieDrafter, TrieOptions};
use foretoken_drafters::{
    GrammarDrafter, HeadDrafter, JacobiDrafter, LlmaDrafter, ModelDrafter, NgramDrafter, NgramSource, PhrasesDrafter,
    PredictionDrafter, RandomDrafter, SharedScorer, SuffixDrafter, TranslatedDrafter,
};
use foretoken_speculation::{Ask, Chance, Drafter, NodeId, Proposal, Sampling, Token};

use crate::checked_scorer::CheckedScorer;
use crate::head::{HeadScorer, ToyHead, near};
use crate::table::{Table, TableScorer, mix};
use crate::vocabulary;

/// A drafter that the suite creates for every run, for a given target.
pub struct Registered {
    /// Its name in messages.
    pub name: &'static str,
    /// Creates the drafter.
    pub make: fn(&Table) -> Box<dyn Drafter>,
}

/// Every drafter there is, with the settings that matter. A new drafter is added here, and nowhere else in tests.
pub fn drafters() -> Vec<Registered> {
    let mut all = continuations();
    all.extend(with_a_model());
    all.extend(with_states());
    all.extend(heads());
    all.extend(with_trees_of_a_model());
    all.extend(without_a_model());
    all.extend(tries());
    all.extend(with_another_vocabulary());
    all
}

/// Drafters that copy from the sequence and from earlier ones.
fn continuations() -> Vec<Registered> {
    vec![
        Registered { name: "lookup", make: |_| Box::new(SuffixDrafter::lookup(1, 3, 10)) },
        Registered { name: "lookup of one occurrence", make: |_| Box::new(SuffixDrafter::lookup_chain(1, 3, 10)) },
        Registered {
            name: "lookup of the first occurrence before others",
            make: |_| {
                let mut drafter = SuffixDrafter::lookup(2, 4, 9);
                (drafter.first, drafter.candidates) = (true, 3);
                Box::new(drafter)
            },
        },
        Registered { name: "span copying", make: |_| Box::new(LlmaDrafter::default()) },
        Registered { name: "span copying of pairs", make: |_| Box::new(LlmaDrafter::new(2, 3)) },
        Registered { name: "prediction", make: |_| Box::new(PredictionDrafter::default()) },
        Registered {
            name: "draft with a prediction of its own",
            make: |t| {
                let drafter = ModelDrafter::new(network(t.vocabulary(), 90));
                Box::new(drafter.with_inner(Box::new(PredictionDrafter::default())))
            },
        },
        Registered { name: "lookup of single tokens", make: |_| Box::new(SuffixDrafter::lookup(1, 1, 3)) },
        Registered { name: "suffix of small capacity", make: |_| Box::new(SuffixDrafter::new(60)) },
        Registered {
            name: "suffix with a history",
            make: |t| {
                let mut drafter = SuffixDrafter::default();
                let text: Vec<Token> = (0..200).map(|i| (mix(i) % t.vocabulary() as u64) as Token).collect();
                drafter.warm_up(&text, 1, None);
                (drafter.token_min, drafter.gain_min, drafter.window) = (0.1, 0.0, 0);
                Box::new(drafter)
            },
        },
    ]
}

/// Models, and trees of any shape.
fn with_a_model() -> Vec<Registered> {
    vec![
        Registered { name: "draft", make: |t| Box::new(ModelDrafter::new(network(t.vocabulary(), 99))) },
        Registered {
            name: "draft by the target itself",
            make: |t| Box::new(ModelDrafter::new(CheckedScorer::new(t.clone(), 4, 200, 64))),
        },
        Registered {
            name: "draft with p-min",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 98));
                drafter.settings.p_min = Some(0.4);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft with a temperature of its own",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 97));
                (drafter.settings.temperature, drafter.depth_max) = (Some(0.5), 3);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft without room",
            make: |t| Box::new(ModelDrafter::new(CheckedScorer::new(Table::seeded(t.vocabulary(), 2, 96), 2, 6, 4))),
        },
        Registered {
            name: "draft with room for a sequence or two",
            make: |t| {
                // Its rows depend on all tokens, so that a wrong page is always detected.
                let mut drafter =
                    ModelDrafter::new(CheckedScorer::new(Table::seeded(t.vocabulary(), 60, 89), 3, 25, 7));
                drafter.settings.p_split = Some(0.2);
                Box::new(drafter)
            },
        },
        Registered { name: "random trees", make: |t| Box::new(RandomTrees { vocabulary: t.vocabulary() }) },
    ]
}

/// Draft models with recurrent states, alone and combined with each other.
fn with_states() -> Vec<Registered> {
    /// Rows depend on many tokens, so that a state that advanced too far is detected. Few rows per pass.
    fn network(vocabulary: usize, seed: u64) -> CheckedScorer {
        CheckedScorer::with_states(Table::seeded(vocabulary, 40, seed), 2, 400, 5, 20)
    }
    vec![
        Registered {
            name: "draft with a state, in trees",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 80));
                drafter.settings.p_split = Some(0.2);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft with a state under a draft with a state",
            make: |t| {
                let mut inner = ModelDrafter::new(network(t.vocabulary(), 81));
                inner.settings.p_split = Some(0.2);
                let outer = ModelDrafter::new(network(t.vocabulary(), 81));
                Box::new(outer.with_inner(Box::new(inner)))
            },
        },
        Registered {
            name: "translated draft with a state",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                Box::new(TranslatedDrafter::new(network(9, 82), translator))
            },
        },
        Registered {
            name: "draft with a state over shared tokens",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                let mut drafter = ModelDrafter::new(SharedScorer::new(network(9, 83), translator));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft that cannot go back",
            make: |t| {
                let mut scorer = TableScorer::new(Table::seeded(t.vocabulary(), 2, 84));
                scorer.forgets = true;
                let mut drafter = ModelDrafter::new(scorer);
                drafter.settings.p_split = Some(0.2);
                Box::new(drafter)
            },
        },
    ]
}

/// Heads that read the target's hidden states, and then their own.
fn heads() -> Vec<Registered> {
    vec![
        Registered {
            name: "head",
            make: |t| Box::new(HeadDrafter::new(HeadScorer::new(ToyHead::new(near(t, 4), 3, 200, 64)))),
        },
        Registered {
            name: "head in trees, with few rows per pass, some of which fail",
            make: |t| {
                let head = ToyHead::new(near(t, 3), 2, 400, 5).with_failing_passes(3);
                let mut drafter = HeadDrafter::new(HeadScorer::new(head));
                (drafter.settings.p_split, drafter.depth_max) = (Some(0.15), 4);
                Box::new(drafter)
            },
        },
        Registered {
            name: "head with a state, in trees",
            make: |t| {
                let head = ToyHead::new(near(t, 3), 2, 400, 7).with_states(20);
                let mut drafter = HeadDrafter::new(HeadScorer::new(head));
                drafter.settings.p_split = Some(0.2);
                Box::new(drafter)
            },
        },
        Registered {
            name: "head with little room, with p-min",
            make: |t| {
                let mut drafter = HeadDrafter::new(HeadScorer::new(ToyHead::new(near(t, 5), 2, 20, 3)));
                (drafter.settings.p_min, drafter.unread_max) = (Some(0.2), 9);
                Box::new(drafter)
            },
        },
    ]
}

/// A small network of its own for a drafter.
fn network(vocabulary: usize, seed: u64) -> CheckedScorer {
    // Few rows per pass, so that prompts are read in chunks; pages shorter than a draft.
    CheckedScorer::new(Table::seeded(vocabulary, 2, seed), 2, 400, 5)
}

/// Draft models that draft trees, or have a drafter of their own.
fn with_trees_of_a_model() -> Vec<Registered> {
    vec![
        Registered {
            name: "draft in trees",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 99));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft in trees, with p-min, of its own law",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 98));
                let settings = &mut drafter.settings;
                (settings.p_split, settings.p_min, settings.n_min) = (Some(0.3), Some(0.3), Some(2));
                (settings.top_k, settings.top_p, settings.min_p) = (Some(3), Some(0.9), Some(0.05));
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft in trees with little room",
            make: |t| {
                let mut drafter = ModelDrafter::new(CheckedScorer::new(Table::seeded(t.vocabulary(), 2, 96), 2, 20, 3));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft with a lookup of its own",
            make: |t| {
                let drafter = ModelDrafter::new(network(t.vocabulary(), 95));
                Box::new(drafter.with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10))))
            },
        },
        Registered {
            name: "draft in trees with a draft in trees with a lookup",
            make: |t| {
                let mut inner = ModelDrafter::new(network(t.vocabulary(), 94));
                inner.settings.p_split = Some(0.2);
                let mut outer = ModelDrafter::new(network(t.vocabulary(), 95));
                outer.settings.p_split = Some(0.2);
                Box::new(outer.with_inner(Box::new(inner.with_inner(Box::new(SuffixDrafter::lookup(1, 1, 4))))))
            },
        },
    ]
}

/// Draft models with another vocabulary, translated and over shared tokens.
fn with_another_vocabulary() -> Vec<Registered> {
    vec![
        Registered {
            name: "translated draft",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                Box::new(TranslatedDrafter::new(network(9, 95), translator))
            },
        },
        Registered {
            name: "translated draft by chance, with p-min and a window of one token",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 4, 1);
                let mut drafter = TranslatedDrafter::new(network(4, 94), translator);
                (
                    drafter.assistant.settings.temperature,
                    drafter.assistant.settings.p_min,
                    drafter.assistant.depth_max,
                ) = (Some(1.0), Some(0.3), 3);
                Box::new(drafter)
            },
        },
        Registered {
            name: "translated draft that adds spaces, without room",
            make: |t| {
                let scorer = CheckedScorer::new(Table::seeded(7, 2, 93), 2, 6, 4);
                Box::new(TranslatedDrafter::new(scorer, vocabulary::spaced_translator(t.vocabulary())))
            },
        },
        Registered {
            name: "draft over shared tokens",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                Box::new(ModelDrafter::new(SharedScorer::new(network(9, 92), translator)))
            },
        },
        Registered {
            name: "draft over shared tokens, in trees",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                let mut drafter = ModelDrafter::new(SharedScorer::new(network(9, 92), translator));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter.with_inner(Box::new(SuffixDrafter::lookup(1, 1, 4))))
            },
        },
        Registered {
            name: "draft over shared tokens, with p-min and spaces",
            make: |t| {
                let translator = vocabulary::spaced_translator(t.vocabulary());
                let mut drafter = ModelDrafter::new(SharedScorer::new(network(7, 91), translator));
                drafter.settings.p_min = Some(0.4);
                Box::new(drafter)
            },
        },
    ]
}

/// Trie lookahead, in every mode.
fn tries() -> Vec<Registered> {
    fn with(set: fn(&mut TrieOptions)) -> Box<dyn Drafter> {
        let mut options = TrieOptions::default();
        set(&mut options);
        Box::new(TrieDrafter::new(options))
    }
    vec![
        Registered { name: "trie", make: |_| Box::new(TrieDrafter::default()) },
        Registered { name: "trie of small capacity", make: |_| with(|o| (o.branch_length, o.capacity) = (5, Some(6))) },
        Registered { name: "trie of parallel branches", make: |_| with(|o| o.layout = Layout::Par) },
        Registered { name: "trie of one branch", make: |_| with(|o| o.layout = Layout::One) },
        Registered {
            name: "trie of inputs, which are kept",
            make: |_| with(|o| (o.source, o.eliminate) = (BranchSource::Input, false)),
        },
        Registered {
            name: "trie by frequency",
            make: |_| {
                with(|o| *o = TrieOptions { capacity: Some(40), ..TrieOptions::of_rule(RetrievalRule::Frequency) })
            },
        },
        Registered {
            name: "trie by frequency, parallel branches",
            make: |_| {
                with(|o| *o = TrieOptions { layout: Layout::Par, ..TrieOptions::of_rule(RetrievalRule::Frequency) })
            },
        },
        Registered { name: "trie of outputs", make: |_| with(|o| (o.source, o.prune) = (BranchSource::Output, false)) },
    ]
}

/// Drafters without a model.
fn without_a_model() -> Vec<Registered> {
    /// The target's greedy output after token 1.
    fn written(table: &Table, len: usize) -> Vec<Token> {
        let mut tokens = vec![1];
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        (0..len).for_each(|_| tokens.push(table.law(&sampling, &tokens, 1, &[]).tokens()[0]));
        tokens
    }
    vec![
        Registered {
            name: "ngram",
            make: |t| {
                let mut drafter = NgramDrafter::default();
                drafter.warm_up(&written(t, 60), 0, None);
                Box::new(drafter)
            },
        },
        Registered {
            name: "ngram trees of the sequence",
            make: |_| {
                let mut drafter = NgramDrafter::new(2, NgramSource::Text);
                (drafter.branches_max, drafter.unigram_min) = (3, 0.0);
                Box::new(drafter)
            },
        },
        Registered { name: "grammar", make: |_| Box::new(GrammarDrafter::default()) },
        Registered {
            name: "phrases",
            make: |_| Box::new(PhrasesDrafter::new([vec![1, 2], vec![2, 1, 0, 1], vec![2, 1, 1], vec![0, 3]])),
        },
        Registered { name: "jacobi", make: |_| Box::new(JacobiDrafter::default()) },
        Registered {
            name: "jacobi of a narrow window",
            make: |_| {
                let mut drafter = JacobiDrafter::new(2, 3, 1);
                (drafter.pool_from_text, drafter.keeps_pace) = (false, true);
                Box::new(drafter)
            },
        },
        Registered { name: "random", make: |t| Box::new(RandomDrafter::new(t.vocabulary())) },
        Registered {
            name: "random forks",
            make: |t| {
                let mut drafter = RandomDrafter::new(t.vocabulary());
                (drafter.forks, drafter.support_max) = (true, 3);
                Box::new(drafter)
            },
        },
    ]
}

/// A drafter that offers point masses in a tree of random shape, a function of the sequence's tokens.
struct RandomTrees {
    vocabulary: usize,
}

impl Drafter for RandomTrees {
    fn name(&self) -> &str {
        "random-trees"
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let mut state = ask.tokens.iter().fold(1, |state, token| mix(state ^ u64::from(*token)));
            for _ in 0..12 {
                state = mix(state);
                let nodes = ask.tree.len() as u64;
                let parent = (state >> 8) % (nodes + 1);
                let parent = (parent < nodes).then(|| NodeId::new(parent as usize));
                let token = ((state >> 40) % self.vocabulary as u64) as Token;
                if ask.has_room() || ask.tree.child(parent, token).is_some() {
                    ask.tree.offer(parent, token, Proposal::Point, ask.source);
                }
            }
        }
    }
}
