//! Tests of networks with sliding windows: pages before a window are released during generation, and the outputs do not
//! change.

use std::path::{Path, PathBuf};

use foretoken_drafters::{JacobiDrafter, ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, ExecutorScorer, Request};
use foretoken_model::{Checkpoint, Executor, Keep, Model, Options};
use foretoken_speculation::{Sampling, Token};

use crate::writing::write;

const SEQUENCES: usize = 3;
const CONTEXT: usize = 400;
const ROWS_MAX: usize = 24;
const PAGE_LEN: usize = 5;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

fn load(name: &str, sequences_max: Option<usize>) -> Model {
    load_with(name, sequences_max, SEQUENCES * CONTEXT.div_ceil(PAGE_LEN))
}

fn load_with(name: &str, sequences_max: Option<usize>, pages: usize) -> Model {
    let checkpoint = Checkpoint::open(&golden(name)).unwrap_or_else(|error| panic!("{error}"));
    let options =
        Options { page_len: PAGE_LEN, pages, sequences_max, rows_max: ROWS_MAX, ..Options::for_positions(CONTEXT, 2) };
    Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// Three requests with prompts that are read in many passes, and outputs of about the same length.
fn requests(drafters: &[u8]) -> Vec<Request> {
    let request = |(seed, temperature): (u64, f32)| Request {
        tokens_max: Some(150),
        drafters: drafters.to_vec(),
        log_probabilities: true,
        sampling: Sampling { temperature, ..Sampling::default() },
        seed,
        budget: BudgetKind::Fixed { nodes: 7 },
        ..Request::new((0..130 + 31 * seed).map(|i| ((i * i + seed) % 61) as Token).collect())
    };
    [(1, 0.0), (2, 0.3), (3, 0.8)].map(request).to_vec()
}

#[test]
fn outputs_far_beyond_a_window_are_those_of_a_cache_that_keeps_all_positions() {
    for name in ["mistral", "ministral", "gemma3"] {
        let mut plain = Engine::new(Box::new(load(name, None)), 1, CONTEXT);
        let expected: Vec<_> =
            requests(&[]).iter().flat_map(|one| write(&mut plain, std::slice::from_ref(one))).collect();
        assert!(expected.iter().all(|output| output.len() == 150), "{name}");

        let target = load(name, Some(SEQUENCES));
        let windows = target.capacity().groups.iter().filter(|group| group.keep != Keep::All);
        let pages: Vec<usize> = windows.map(|group| group.pages).collect();
        // 31 positions that a row sees besides its own, the rows of a pass, and one page since pages are not aligned.
        assert_eq!(pages, [SEQUENCES * ((31 + ROWS_MAX).div_ceil(PAGE_LEN) + 1)], "{name}");
        let mut engine = Engine::new(Box::new(target), SEQUENCES, CONTEXT);
        let scorer = ExecutorScorer::new(Box::new(load(name, None)));
        engine.add_drafter(Box::new(ModelDrafter::new(scorer)));
        engine.add_drafter(Box::new(SuffixDrafter::default()));
        engine.add_drafter(Box::new(JacobiDrafter::default()));
        for drafters in [&[][..], &[0], &[1], &[0, 1], &[2]] {
            let found = write(&mut engine, &requests(drafters));
            assert!(found == expected, "{name}, drafters {drafters:?}");
        }
        // With room for little more than one sequence they preempt each other, and compute or adopt their rows again.
        let small = load_with(name, Some(1), CONTEXT.div_ceil(PAGE_LEN) + 9);
        let mut engine = Engine::new(Box::new(small), SEQUENCES, CONTEXT);
        engine.add_drafter(Box::new(SuffixDrafter::default()));
        for drafters in [&[][..], &[0]] {
            let found = write(&mut engine, &requests(drafters));
            assert!(found == expected, "{name}, preempted, drafters {drafters:?}");
            engine.check_pages().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
