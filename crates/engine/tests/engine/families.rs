//! Every family that can be run, with drafters of every kind: the same tokens and the same bits as without.
//!
//! The networks are the golden folders of `foretoken-model`. Left out: what they compute, which is tested there.

use std::path::{Path, PathBuf};

use foretoken_drafters::{JacobiDrafter, ModelDrafter, NgramDrafter, SuffixDrafter, TrieDrafter};
use foretoken_engine::{BudgetKind, Engine, ExecutorScorer, Request};
use foretoken_model::{Checkpoint, Model, Options};
use foretoken_speculation::{Drafter, Promise, Sampling, Token};

use crate::writing::write;

/// The networks.
fn folders() -> Vec<PathBuf> {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden");
    let all = std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|path| path.is_dir()).collect();
    all.sort();
    all
}

fn load(path: &Path) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    let options = Options { page_len: 8, rows_max: 48, ..Options::for_positions(2 * 112, 2) };
    Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two texts.
fn requests(drafters: &[u8], promise: Promise, temperature: f32) -> Vec<Request> {
    let request = |seed: u64| Request {
        tokens_max: Some(48),
        drafters: drafters.to_vec(),
        log_probabilities: true,
        sampling: Sampling { temperature, ..Sampling::default() },
        seed,
        promise,
        budget: BudgetKind::Fixed { nodes: 7 },
        ..Request::new((0..50).map(|i| ((i * i + 7 * seed) % 47) as Token).collect())
    };
    [1, 2].map(request).to_vec()
}

#[test]
fn every_family_writes_the_same_whoever_drafts() {
    let folders = folders();
    assert!(folders.len() > 50, "{} networks", folders.len());
    for folder in folders {
        let mut engine = Engine::new(Box::new(load(&folder)), 2, 112);
        let model = || ModelDrafter::new(ExecutorScorer::new(Box::new(load(&folder))));
        let drafters: [Box<dyn Drafter>; 6] = [
            Box::new(model()),
            Box::new(model().with_inner(Box::new(SuffixDrafter::default()))),
            Box::new(SuffixDrafter::default()),
            Box::new(TrieDrafter::default()),
            Box::new(NgramDrafter::default()),
            Box::new(JacobiDrafter::default()),
        ];
        for (number, drafter) in (0..).zip(drafters) {
            assert_eq!(engine.add_drafter(drafter), number);
        }
        for (promise, temperature) in [(Promise::Exact, 0.7), (Promise::Rejection, 0.0), (Promise::Block, 0.0)] {
            let plain = write(&mut engine, &requests(&[], promise, temperature));
            for drafters in [&[0][..], &[1], &[2, 3], &[4, 0], &[5]] {
                let found = write(&mut engine, &requests(drafters, promise, temperature));
                assert!(found == plain, "{}: {promise:?} with drafters {drafters:?}", folder.display());
            }
        }
    }
}
