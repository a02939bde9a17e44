//! Tests by enumeration of the draft model's trees, its own filters and its inner drafter.
//!
//! With three tokens a threshold of 0.1 nearly always draws all siblings, and 0.3 one or two of them, depending on the
//! law at the position. Budgets are chosen so that trees are cut while leaves of similar gains compete.

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_speculation::{DraftSettings, Drafter, Promise, Sampling};
use foretoken_testkit::table::{Table, TableScorer};

use crate::harness::Setup;
use crate::{PROMISES, PROMPT, TOLERANCE, fixed, lookup};

fn drafter(table: &Table, depth_max: usize, settings: DraftSettings) -> ModelDrafter<TableScorer> {
    let mut drafter = ModelDrafter::new(TableScorer::new(table.clone()));
    (drafter.depth_max, drafter.settings) = (depth_max, settings);
    drafter
}

fn splitting(p_split: f32, p_min: f32) -> DraftSettings {
    DraftSettings { p_split: Some(p_split), p_min: Some(p_min), ..DraftSettings::default() }
}

#[test]
fn a_model_drafts_trees_in_one_pass() {
    let sampling = Sampling::default();
    for seed in 0..3 {
        let (target, draft) = (Table::seeded(3, 2, seed), Table::dense(3, 1, seed + 100));
        for promise in PROMISES {
            for (p_split, p_min) in [(0.1, 0.0), (0.3, 0.0), (0.1, 0.4), (0.3, 0.4)] {
                for nodes in [2, 3, 5] {
                    let setup = Setup::new(&target, &sampling, promise, &PROMPT, 4);
                    let drafters =
                        || -> Vec<Box<dyn Drafter>> { vec![Box::new(drafter(&draft, 3, splitting(p_split, p_min)))] };
                    let error = setup.error_of_one_pass(nodes, drafters);
                    let case = format!("{promise:?} split {p_split}, p-min {p_min}, {nodes} nodes, seed {seed}");
                    assert!(error < TOLERANCE, "{case}: {error}");
                }
            }
        }
    }
}

#[test]
fn a_model_drafts_trees_over_several_passes_and_with_other_drafters() {
    let sampling = Sampling::default();
    for seed in 0..3 {
        let (target, draft) = (Table::seeded(3, 2, seed), Table::seeded(3, 1, seed + 60));
        for promise in PROMISES {
            for p_split in [0.1, 0.3] {
                let setup = Setup::new(&target, &sampling, promise, &PROMPT, 4);
                let trees = || Box::new(drafter(&draft, 3, splitting(p_split, 0.3))) as Box<dyn Drafter>;
                let error = setup.error(|| vec![trees()], fixed(3));
                assert!(error < TOLERANCE, "{promise:?} split {p_split}, seed {seed}: {error}");
                let error = setup.error(|| vec![trees(), lookup()], fixed(3));
                assert!(error < TOLERANCE, "{promise:?} split {p_split} before a lookup, seed {seed}: {error}");
                let error = setup.error(|| vec![lookup(), trees()], fixed(3));
                assert!(error < TOLERANCE, "{promise:?} split {p_split} after a lookup, seed {seed}: {error}");
            }
        }
    }
}

#[test]
fn a_draft_with_filters_of_its_own_keeps_the_law() {
    let filters = [
        DraftSettings { temperature: Some(0.0), ..splitting(0.2, 0.0) },
        DraftSettings { temperature: Some(0.4), top_k: Some(2), ..splitting(0.2, 0.0) },
        DraftSettings { top_p: Some(0.7), ..splitting(1.0, 0.3) },
        DraftSettings { min_p: Some(0.5), n_min: Some(2), ..splitting(0.2, 0.6) },
    ];
    // The target has filters too, some of which are replaced by the draft's.
    for sampling in [Sampling::default(), Sampling { top_k: 2, min_p: 0.1, ..Sampling::default() }] {
        for seed in 0..2 {
            let (target, draft) = (Table::dense(3, 2, seed), Table::dense(3, 1, seed + 20));
            for promise in PROMISES {
                for settings in filters {
                    let setup = Setup::new(&target, &sampling, promise, &PROMPT, 4);
                    let error = setup.error(|| vec![Box::new(drafter(&draft, 3, settings))], fixed(3));
                    assert!(error < TOLERANCE, "{promise:?} {settings:?} seed {seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn a_drafter_of_the_draft_keeps_the_law() {
    let sampling = Sampling::default();
    for seed in 0..2 {
        let (target, draft) = (Table::seeded(3, 2, seed), Table::seeded(3, 1, seed + 40));
        let innermost = Table::seeded(3, 1, seed + 80);
        for promise in PROMISES {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, 3);
            for p_split in [1.0, 0.2] {
                let outer = || drafter(&draft, 2, splitting(p_split, 0.0));
                let drafters = || -> Vec<Box<dyn Drafter>> {
                    vec![Box::new(outer().with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10))))]
                };
                let error = setup.error(drafters, fixed(2));
                assert!(error < TOLERANCE, "{promise:?} lookup within, split {p_split}, seed {seed}: {error}");
                // Under exact each level multiplies the outcomes, so it has two levels, and the other promises have
                // three.
                let deep = || -> Vec<Box<dyn Drafter>> {
                    let inner = drafter(&innermost, 2, splitting(0.3, 0.0));
                    let inner = match promise {
                        Promise::Exact => inner,
                        _ => inner.with_inner(Box::new(SuffixDrafter::lookup(1, 1, 2))),
                    };
                    vec![Box::new(outer().with_inner(Box::new(inner)))]
                };
                let error = setup.error(deep, fixed(2));
                assert!(error < TOLERANCE, "{promise:?} a model within, split {p_split}, seed {seed}: {error}");
            }
        }
    }
}
