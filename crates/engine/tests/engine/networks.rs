//! Networks of experts in the conformance suite: as targets of every drafter and as draft models of every kind, with
//! greedy and sampled texts whose tokens and log-probabilities are those of a plain reading, to the bit. So are draft
//! heads and early exits of these networks.
//!
//! The networks are golden folders of `foretoken-model` with the vocabulary of toys. Left out: sampled texts under
//! *rejection*, whose law is compared and not their tokens.

use std::path::Path;

use foretoken_drafters::{HeadDrafter, ModelDrafter, SharedScorer, SuffixDrafter, TranslatedDrafter};
use foretoken_engine::{BudgetKind, ExecutorScorer};
use foretoken_speculation::Promise;
use foretoken_testkit::conform::{Case, Registered, Setting, cases, drafters, exact_by};
use foretoken_testkit::network::{Head, Network};
use foretoken_testkit::vocabulary;

/// Words of the largest toy.
const TOKENS: usize = 11;
/// Networks whose rows choose 3 of 8 experts, the second in groups, and a number for the cases of each.
const TARGETS: [(&str, u64); 2] = [("olmoe", 1001), ("glm4_moe-groups", 1002)];

fn network(name: &str, tokens: usize) -> Network {
    Network::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name), tokens)
}

/// A draft model: pages shorter than a draft, and few rows a pass.
fn scorer(name: &str, tokens: usize) -> ExecutorScorer {
    ExecutorScorer::new(Box::new(network(name, tokens).load(2, 5)))
}

/// Drafters whose draft model is a network of experts.
fn drafts() -> Vec<Registered> {
    vec![
        Registered { name: "draft of experts", make: |_| Box::new(ModelDrafter::new(scorer("mixtral", TOKENS))) },
        Registered {
            name: "draft of experts that may be the target's own",
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

/// What drafts with a network's own layers, or from its hidden states.
fn of_target(name: &str) -> Vec<Registered> {
    // Makers are functions, which hold nothing.
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

/// In trees where the target is the second one.
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

/// All drafters together, each alone, and none, over a target and some of its cases.
fn holds(settings: &[Setting], of_cases: impl Fn((u64, usize, usize)) -> Vec<Case> + Sync) {
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
                        let held = exact_by((&table, executor), &cases, setting, drafters);
                        held.unwrap_or_else(|message| panic!("{name}: {message}"));
                    }
                }
            });
        }
    });
}

#[test]
fn networks_of_experts_give_the_oracles_tokens_and_bits_with_any_drafters() {
    let auto = BudgetKind::Auto { nodes_max: 9 };
    holds(&[Setting { batch: 4, budget: auto, ..Setting::plain() }, Setting { batch: 12, ..Setting::plain() }], cases);
}

#[test]
fn greedy_texts_of_networks_of_experts_are_the_same_under_every_promise() {
    let promises = [Promise::Rejection, Promise::Block];
    let settings = promises.map(|promise| Setting { promise, batch: 4, page_len: 16, ..Setting::plain() });
    holds(&settings, |target| {
        let mut cases = cases(target);
        cases.iter_mut().for_each(|case| case.sampling.temperature = 0.0);
        cases
    });
}
