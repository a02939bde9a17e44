//! Tests of prefixes that are saved by one engine and loaded by another: the outputs are the same to the bit, with less
//! to compute.

use std::path::{Path, PathBuf};

use foretoken_engine::{Engine, Event, Race, Request, SavedPrefix, Token};
use foretoken_model::{CacheType, Checkpoint, Executor, Model, Options};
use foretoken_speculation::{Sampling, Tenant};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

use crate::writing::write;

const CONTEXT: usize = 160;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden")
}

fn engine_of(path: &Path, types: [CacheType; 2], page_len: usize) -> Option<Engine> {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    let [key_type, value_type] = types;
    let options = Options {
        page_len,
        pages: CONTEXT.div_ceil(page_len),
        rows_max: 24,
        sequences_max: Some(1),
        key_type,
        value_type,
        ..Options::for_positions(CONTEXT, 2)
    };
    // Some networks have heads too narrow for the blocks of a quantized cache. Rows that depend on a source are not
    // saved.
    let model = Model::load(&checkpoint, options, &mut |_, _| ()).ok()?;
    let model = Some(model).filter(|model| model.capacity().sources.is_none())?;
    Some(Engine::new(Box::new(model), 1, CONTEXT))
}

fn request(prompt: &[Token], temperature: f32) -> Request {
    Request {
        tokens_max: Some(20),
        log_probabilities: true,
        sampling: Sampling { temperature, ..Sampling::default() },
        seed: 5,
        ..Request::new(prompt.to_vec())
    }
}

fn prompt(len: usize, end: Token) -> Vec<Token> {
    (0..len as Token - 1).map(|i| (i * i + 7) % 47).chain([end]).collect()
}

/// Saves a prefix of a prompt while a request with the prompt runs.
fn saved(engine: &mut Engine, prompt: &[Token], len: usize) -> SavedPrefix {
    engine.save_prefix(Tenant::default(), prompt[..len].to_vec());
    drop(write(engine, &[request(prompt, 0.0)]));
    engine.take_saved_prefix().unwrap_or_else(|| panic!("no prefix of {len} of {} tokens was saved", prompt.len()))
}

/// Runs a request. Returns how many tokens of its prompt were cached before.
fn shared(engine: &mut Engine, request: Request) -> usize {
    engine.submit(request).unwrap();
    let mut shared = None;
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            if let Event::Finished { stats, .. } = event {
                shared = Some(stats.prompt_tokens_shared);
            }
        }
    }
    engine.check_pages().unwrap_or_else(|error| panic!("{error}"));
    shared.expect("it ended")
}

#[test]
fn every_family_continues_a_saved_prefix_like_a_computed_one() {
    let folders = crate::families::folders();
    assert!(folders.len() > 50, "{} networks", folders.len());
    for folder in folders {
        let kinds = CacheType::ALL;
        for types in [[kinds[1]; 2], [kinds[0], kinds[2]], [kinds[3], kinds[1]], [kinds[3]; 2]] {
            let Some(mut plain) = engine_of(&folder, types, 8) else { continue };
            let tokens = prompt(75, 3);
            let expected = [0.0, 1.0].map(|temperature| write(&mut plain, &[request(&tokens, temperature)]));
            let mut first = engine_of(&folder, types, 8).unwrap();
            let saved = saved(&mut first, &tokens, 75);
            let found = |page_len: usize, temperature: f32| {
                let mut later = engine_of(&folder, types, page_len).unwrap();
                let loaded = later.load_prefix(Some(Tenant::default()), &saved);
                assert_eq!(loaded, 75, "{} {types:?}, pages of {page_len}", folder.display());
                later.check_pages().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
                let output = write(&mut later, &[request(&tokens, temperature)]);
                let mut again = engine_of(&folder, types, page_len).unwrap();
                again.load_prefix(Some(Tenant::default()), &saved);
                assert_eq!(shared(&mut again, request(&tokens, temperature)), 74, "{}", folder.display());
                output
            };
            for (temperature, expected) in [0.0, 1.0].into_iter().zip(&expected) {
                assert!(found(8, temperature) == *expected, "{} {types:?} at {temperature}", folder.display());
            }
            // The page length may differ between saving and loading.
            assert!(found(32, 0.0) == expected[0], "{} {types:?}: another page length", folder.display());
        }
    }
}

#[test]
fn a_prompt_shares_its_common_prefix_with_a_saved_one() {
    for name in ["llama", "mistral", "gemma3"] {
        let mut first = engine_of(&goldens().join(name), [CacheType::F16; 2], 8).unwrap();
        let tokens = prompt(90, 3);
        let saved = saved(&mut first, &tokens, 90);
        for (len, end) in [(90, 4), (95, 4), (80, 4), (17, 4), (2, 9)] {
            let other = prompt(len, end);
            let common = tokens.iter().zip(&other).take_while(|(a, b)| a == b).count();
            let fresh = || engine_of(&goldens().join(name), [CacheType::F16; 2], 8).unwrap();
            let mut later = fresh();
            later.load_prefix(Some(Tenant::default()), &saved);
            let expected = write(&mut fresh(), &[request(&other, 1.0)]);
            assert!(write(&mut later, &[request(&other, 1.0)]) == expected, "{name}: {len} tokens");
            let mut later = fresh();
            later.load_prefix(Some(Tenant::default()), &saved);
            let found = shared(&mut later, request(&other, 1.0));
            let windowed = name != "llama";
            // A group with a window of 32 still held the last 66 positions or more, since the prompt was read in passes
            // of 24 rows.
            let expected = if windowed && len < 60 { 0 } else { common.min(len - 1) };
            assert_eq!(found, expected, "{name}: {len} tokens");
        }
    }
}

fn toy(window: Option<usize>, pages: usize, page_len: usize) -> Engine {
    let executor = ToyExecutor::new(Table::seeded(7, 3, 5), page_len, pages, 12);
    let executor = match window {
        Some(window) => executor.with_window(window, 2),
        None => executor,
    };
    Engine::new(Box::new(executor), 2, page_len * pages)
}

#[test]
fn prefixes_of_every_length_are_saved_and_loaded() {
    for window in [None, Some(1), Some(2), Some(7), Some(64)] {
        for page_len in [1, 4, 5] {
            for len in 1..=26 {
                let tokens: Vec<Token> = (0..26).map(|i| i * 5 % 7).collect();
                let saved = saved(&mut toy(window, 64, page_len), &tokens, len);
                let mut later = toy(window, 64, 4);
                let case = format!("window {window:?}, pages of {page_len}, {len} tokens");
                let loaded = later.load_prefix(Some(Tenant::default()), &saved);
                assert_eq!(loaded, len, "{case}");
                later.check_pages().unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(shared(&mut later, request(&tokens, 0.5)), len.min(25), "{case}");
                let expected = write(&mut toy(window, 64, 4), &[request(&tokens, 0.5)]);
                let mut later = toy(window, 64, 4);
                assert_eq!(later.load_prefix(None, &saved), len, "{case}");
                assert_eq!(write(&mut later, &[request(&tokens, 0.5)]), expected, "{case}");
                // Loading it again changes nothing.
                assert_eq!(later.load_prefix(None, &saved), len, "{case}");
                later.check_pages().unwrap_or_else(|error| panic!("{case}: {error}"));
            }
        }
    }
}

#[test]
fn a_prefix_is_loaded_for_one_tenant_or_for_all() {
    let tokens: Vec<Token> = (0..26).map(|i| i * 5 % 7).collect();
    let saved = saved(&mut toy(None, 64, 4), &tokens, 26);
    let as_other = || Request { tenant: Tenant(9), ..request(&tokens, 0.0) };
    let mut own = toy(None, 64, 4);
    own.load_prefix(Some(Tenant(3)), &saved);
    assert_eq!(shared(&mut own, as_other()), 0);
    let mut public = toy(None, 64, 4);
    public.load_prefix(None, &saved);
    assert_eq!(shared(&mut public, as_other()), 25);
    // A prefix that another tenant computed is not saved for this one.
    let mut engine = toy(None, 64, 4);
    engine.save_prefix(Tenant(3), tokens.clone());
    drop(write(&mut engine, &[as_other()]));
    assert_eq!(engine.take_saved_prefix(), None);
}

#[test]
fn a_prefix_is_loaded_as_far_as_there_is_room() {
    let tokens: Vec<Token> = (0..40).map(|i| i * 5 % 7).collect();
    let full = saved(&mut toy(None, 64, 4), &tokens, 40);
    let mut small = toy(None, 6, 4);
    assert_eq!(small.load_prefix(None, &full), 24);
    small.check_pages().unwrap();
    let expected = write(&mut toy(None, 6, 4), &[request(&tokens[..20], 0.5)]);
    assert_eq!(write(&mut small, &[request(&tokens[..20], 0.5)]), expected);
    small.check_pages().unwrap();

    let mut windowed = saved(&mut toy(Some(7), 64, 4), &tokens, 40);
    assert!(windowed.groups[1].first < 12, "only the window was saved, from {}", windowed.groups[1].first);
    assert_eq!(toy(Some(7), 6, 4).load_prefix(None, &windowed), 24);
    // If a group has fewer pages than were saved of its window, as many as it has suffice.
    let narrow = ToyExecutor::new(Table::seeded(7, 3, 5), 4, 64, 1).with_window(7, 1);
    let mut narrow = Engine::new(Box::new(narrow), 1, 256);
    assert_eq!(narrow.load_prefix(None, &windowed), 40);
    narrow.check_pages().unwrap();
    assert_eq!(shared(&mut narrow, request(&tokens, 0.5)), 39);
    // Without all rows that the next row sees, nothing is loaded.
    let rows = &mut windowed.groups[1];
    let cut = 36 - rows.first;
    rows.first = 36;
    rows.bytes.drain(..4 * cut);
    for mut later in [toy(Some(7), 64, 4), toy(Some(7), 6, 4)] {
        assert_eq!(later.load_prefix(None, &windowed), 0);
        later.check_pages().unwrap();
    }
}

#[test]
fn a_prefix_is_saved_only_after_a_request_has_computed_it() {
    let tokens: Vec<Token> = (0..26).map(|i| i * 5 % 7).collect();
    let mut engine = toy(None, 64, 4);
    engine.save_prefix(Tenant::default(), vec![1; 9]);
    drop(write(&mut engine, &[request(&tokens, 0.0)]));
    assert_eq!(engine.take_saved_prefix(), None);
    // A later request computes it.
    drop(write(&mut engine, &[request(&[1; 12], 0.0)]));
    let found = engine.take_saved_prefix().expect("the engine still waits for it");
    assert_eq!((found.tokens.as_slice(), engine.take_saved_prefix()), (&[1; 9][..], None));
}
