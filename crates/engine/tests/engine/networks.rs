//! The conformance suite with mixture-of-experts networks, as targets of every drafter and as draft models of every
//! kind, and with draft heads and early exits of these networks: greedy and sampled outputs have the tokens and
//! log-probabilities of plain decoding, to the bit.
//!
//! The networks are golden folders of `foretoken-model` with the vocabulary of toys. Sampled outputs under *rejection*
//! are compared by their law (`head_laws.rs`), not by their tokens.

use std::path::Path;

use foretoken_drafters::{HeadDrafter, ModelDrafter, SharedScorer, SuffixDrafter, TranslatedDrafter};
use foretoken_engine::{BudgetKind, ExecutorScorer};
use foretoken_speculation::Promise;
use foretoken_testkit::conform::{Case, Registered, Setting, cases, drafters, exact_by};
use foretoken_testkit::network::{Head, Network};
use foretoken_testkit::vocabulary;

/// The vocabulary of the largest toy.
const TOKENS: usize = 11;
/// Networks whose rows choose 3 of 8 experts, in the second by groups, and a number for the cases of each.
const TARGETS: [(&str, u64); 2] = [("olmoe", 1001), ("glm4_moe-groups", 1002)];

fn network(name: &str, tokens: usize) -> Network {
    Network::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name), tokens)
}

/// A draft model with pages shorter than a draft and few rows per pass.
fn scorer(name: &str, tokens: usize) -> ExecutorScorer {
    ExecutorScorer::new(Box::new(network(name, tokens).load(2, 5)))
}

/// Drafters whose draft model is a mixture-of-experts network.
fn drafts() -> Vec<Registered> {
    vec![
        Registered { name: "draft of experts", make: |_| Box::new(ModelDrafter::new(scorer("mixtral", TOKENS))) },
        Registered {
            name: "draft of experts, the same network as one of the targets",
            make: |_| Box::new(ModelDrafter::new(scorer("olmoe", TOKENS))),
        },
        Registered {
            name: "draft of experts in trees",
            make: |_| {
                let mut drafter = ModelDrafter::new(scorer("qwen2_moe", TOKENS));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft of experts with p-min and a lookup of its own",
            make: |_| {
                let mut drafter = ModelDrafter::new(scorer("ernie4_5_moe", TOKENS));
                drafter.settings.p_min = Some(0.1);
                Box::new(drafter.with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10))))
            },
        },
        Registered {
            name: "translated draft of experts",
            make: |_| {
                let translator = vocabulary::translator(TOKENS, 9, 10);
                Box::new(TranslatedDrafter::new(scorer("granitemoe", 9), translator))
            },
        },
        Registered {
            name: "draft of experts over shared tokens, in trees",
            make: |_| {
                let translator = vocabulary::translator(TOKENS, 9, 10);
                let mut drafter = ModelDrafter::new(SharedScorer::new(scorer("qwen3_moe", 9), translator));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
    ]
}

/// Drafters that use the target's own layers or its hidden states.
fn of_target(name: &str) -> Vec<Registered> {
    // `make` is a function pointer, which cannot capture the name.
    match name {
        "olmoe" => vec![
            Registered { name: "early exit", make: |_| Box::new(exit("olmoe")) },
            Registered { name: "a layer as head", make: |_| Box::new(head("olmoe", Head::Layers)) },
            Registered { name: "Medusa", make: |_| Box::new(head("olmoe", Head::Medusa)) },
        ],
        _ => vec![
            Registered { name: "early exit in trees", make: |_| Box::new(exit("glm4_moe-groups")) },
            Registered { name: "a layer as head in trees", make: |_| Box::new(head("glm4_moe-groups", Head::Layers)) },
            Registered { name: "Medusa in trees", make: |_| Box::new(head("glm4_moe-groups", Head::Medusa)) },
        ],
    }
}

/// The second target is drafted for in trees.
fn split(name: &str) -> Option<f32> {
    (name != TARGETS[0].0).then_some(0.1)
}

fn exit(name: &str) -> ModelDrafter<ExecutorScorer> {
    let mut drafter = ModelDrafter::new(network(name, TOKENS).exit(1, 2, 5));
    drafter.settings.p_split = split(name);
    drafter
}

fn head(name: &str, kind: Head) -> HeadDrafter<ExecutorScorer> {
    let mut drafter = network(name, TOKENS).head(kind, 2, 5);
    drafter.settings.p_split = split(name);
    if kind == Head::Medusa {
        drafter.depth_max = 3;
    }
    drafter
}

/// Checks every target and its cases with all drafters together, with each alone, and with none.
fn check(settings: &[Setting], of_cases: impl Fn((u64, usize, usize)) -> Vec<Case> + Sync) {
    std::thread::scope(|scope| {
        for (name, number) in TARGETS {
            let of_cases = &of_cases;
            scope.spawn(move || {
                let (target, cases) = (network(name, TOKENS), of_cases((number, TOKENS, 0)));
                let table = target.table();
                let registered = drafters().into_iter().filter(|drafter| !drafter.name.starts_with("head"));
                let all: Vec<Registered> = registered.chain(drafts()).chain(of_target(name)).collect();
                let alone = all.iter().map(|drafter| vec![drafter]);
                let selections: Vec<Vec<&Registered>> = alone.chain([all.iter().collect(), Vec::new()]).collect();
                for setting in settings {
                    for drafters in &selections {
                        let executor = Box::new(target.load(setting.page_len, setting.rows_max));
                        let result = exact_by((&table, executor), &cases, setting, drafters);
                        result.unwrap_or_else(|message| panic!("{name}: {message}"));
                    }
                }
            });
        }
    });
}

#[test]
fn mixtures_of_experts_give_the_oracles_tokens_and_bits_with_any_drafters() {
    let auto = BudgetKind::Auto { nodes_max: 9 };
    check(&[Setting { batch: 4, budget: auto, ..Setting::plain() }, Setting { batch: 12, ..Setting::plain() }], cases);
}

#[test]
fn greedy_outputs_of_mixtures_of_experts_are_the_same_under_every_promise() {
    let promises = [Promise::Rejection, Promise::Block];
    let settings = promises.map(|promise| Setting { promise, batch: 4, page_len: 16, ..Setting::plain() });
    check(&settings, |target| {
        let mut cases = cases(target);
        cases.iter_mut().for_each(|case| case.sampling.temperature = 0.0);
        cases
    });
}
