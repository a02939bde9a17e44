//! Tests that every family writes the same tokens and the same bits with drafters of every kind as without.
//!
//! The networks are the golden folders of `foretoken-model`, where their outputs are tested.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foretoken_drafters::{JacobiDrafter, ModelDrafter, NgramDrafter, SuffixDrafter, TrieDrafter};
use foretoken_engine::{BudgetKind, Engine, ExecutorScorer, Request};
use foretoken_model::{Checkpoint, Executor, Model, Options};
use foretoken_speculation::{Drafter, Promise, Sampling, Token};

use crate::writing::{write, write_and_score};

/// The networks, without heads (`eagle3-*`), which read hidden states.
pub(crate) fn folders() -> Vec<PathBuf> {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden");
    let all = std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path());
    let heads = ["eagle3-", "medusa-"];
    let is_head = |path: &Path| {
        path.file_name().is_some_and(|name| heads.iter().any(|head| name.to_string_lossy().starts_with(head)))
    };
    let mut all: Vec<_> = all.filter(|path| path.is_dir() && !is_head(path)).collect();
    all.sort();
    all
}

fn load(path: &Path) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    let options = Options { page_len: 8, rows_max: 48, ..Options::for_positions(2 * 112, 2) };
    Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// The source of a request whose network has an encoder.
fn source_of(model: &Model, seed: u64) -> Option<Arc<[Token]>> {
    let source = || (0..30 + 7 * seed).map(|i| ((i * i + 5 * seed) % 47) as Token).collect();
    model.capacity().sources.as_ref().map(|_| source())
}

/// Two requests, without sources.
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

/// An output has the same bits when it is scored as a prompt: in a batch or alone, read at once or in chunks, drafted
/// or not.
#[test]
fn every_family_scores_a_prompt_as_it_was_written() {
    for folder in folders() {
        let model = load(&folder);
        let sources = [1, 2].map(|seed| source_of(&model, seed));
        let mut engine = Engine::new(Box::new(model), 2, 112);
        let number = engine.add_drafter(Box::new(SuffixDrafter::default()));
        let asked: Vec<Request> = requests(&[number], Promise::Exact, 0.7)
            .into_iter()
            .zip(&sources)
            .map(|(request, source)| Request { top_log_probabilities: 3, source: source.clone(), ..request })
            .collect();
        let written: Vec<_> = write_and_score(&mut engine, &asked).into_iter().map(|(written, _)| written).collect();
        // Shorter than the shortest output, since the context of some networks is full.
        let len = written.iter().map(Vec::len).min().unwrap() - 2;
        assert!(len > 3, "{}: {len} tokens", folder.display());
        let again = |at: usize, tokens_max: usize| {
            let output = written[at][..len].iter().map(|scored| scored.0);
            let prompt = asked[at].prompt.iter().copied().chain(output).collect();
            let wanted = Request { prompt_log_probabilities: true, top_log_probabilities: 3, ..Request::new(prompt) };
            let source = sources[at].clone();
            (at, Request { tokens_max: Some(tokens_max), drafters: vec![number], source, ..wanted })
        };
        for batch in [&[again(0, 0), again(1, 2)][..], &[again(1, 0)], &[again(0, 1)]] {
            let requests: Vec<Request> = batch.iter().map(|(_, request)| request.clone()).collect();
            for ((at, request), (_, scored)) in batch.iter().zip(write_and_score(&mut engine, &requests)) {
                assert_eq!(scored.len(), request.prompt.len(), "{}", folder.display());
                assert!(scored.ends_with(&written[*at][..len]), "{}: request {at}", folder.display());
            }
        }
    }
}

#[test]
fn every_family_writes_the_same_with_any_drafters() {
    let folders = folders();
    assert!(folders.len() > 50, "{} networks", folders.len());
    for folder in folders {
        let target = load(&folder);
        let sources = [1, 2].map(|seed| source_of(&target, seed));
        let asked = |drafters: &[u8], promise, temperature| -> Vec<Request> {
            let requests = requests(drafters, promise, temperature).into_iter().zip(&sources);
            requests.map(|(request, source)| Request { source: source.clone(), ..request }).collect()
        };
        let mut engine = Engine::new(Box::new(target), 2, 112);
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
            let plain = write(&mut engine, &asked(&[], promise, temperature));
            for drafters in [&[0][..], &[1], &[2, 3], &[4, 0], &[5]] {
                let found = write(&mut engine, &asked(drafters, promise, temperature));
                assert!(found == plain, "{}: {promise:?} with drafters {drafters:?}", folder.display());
            }
        }
    }
}
