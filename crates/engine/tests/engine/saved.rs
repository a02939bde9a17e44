//! Prefixes that are saved by one engine and loaded by another: the same texts to the bit, with less to compute.

use std::path::{Path, PathBuf};

use foretoken_engine::{Engine, Event, Race, Request, SavedPrefix, Token};
use foretoken_model::{CacheType, Checkpoint, Model, Options};
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
        texts: Some(1),
        key_type,
        value_type,
        ..Options::for_positions(CONTEXT, 2)
    };
    // Some heads are too narrow for blocks.
    let model = Model::load(&checkpoint, options, &mut |_, _| ()).ok()?;
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

/// What is saved of a prompt while a text goes on behind it, which it does not change.
fn saved(engine: &mut Engine, prompt: &[Token], len: usize) -> SavedPrefix {
    engine.save_prefix(Tenant::default(), prompt[..len].to_vec());
    drop(write(engine, &[request(prompt, 0.0)]));
    engine.take_saved_prefix().unwrap_or_else(|| panic!("{len} tokens of {} were computed", prompt.len()))
}

/// The first text and how many rows of its prompt were there before.
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
fn every_family_goes_on_from_a_saved_prefix_as_from_one_it_computed() {
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
                let text = write(&mut later, &[request(&tokens, temperature)]);
                let mut again = engine_of(&folder, types, page_len).unwrap();
                again.load_prefix(Some(Tenant::default()), &saved);
                assert_eq!(shared(&mut again, request(&tokens, temperature)), 74, "{}", folder.display());
                text
            };
            for (temperature, expected) in [0.0, 1.0].into_iter().zip(&expected) {
                assert!(found(8, temperature) == *expected, "{} {types:?} at {temperature}", folder.display());
            }
            // How pages are cut is no part of what is saved.
            assert!(found(32, 0.0) == expected[0], "{} {types:?}: other pages", folder.display());
        }
    }
}

#[test]
fn a_prompt_that_begins_alike_has_what_is_common() {
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
            // A group that keeps a window of 32 held 66 positions and more when the prompt was read in passes of 24.
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
fn every_length_of_every_prompt_is_saved_and_found() {
    for window in [None, Some(1), Some(2), Some(7), Some(64)] {
        for page_len in [1, 4, 5] {
            for len in 1..=26 {
                let tokens: Vec<Token> = (0..26).map(|i| i * 5 % 7).collect();
                let saved = saved(&mut toy(window, 64, page_len), &tokens, len);
                let mut later = toy(window, 64, 4);
                let place = format!("window {window:?}, pages of {page_len}, {len} tokens");
                let loaded = later.load_prefix(Some(Tenant::default()), &saved);
                assert_eq!(loaded, len, "{place}");
                later.check_pages().unwrap_or_else(|error| panic!("{place}: {error}"));
                assert_eq!(shared(&mut later, request(&tokens, 0.5)), len.min(25), "{place}");
                let expected = write(&mut toy(window, 64, 4), &[request(&tokens, 0.5)]);
                let mut later = toy(window, 64, 4);
                assert_eq!(later.load_prefix(None, &saved), len, "{place}");
                assert_eq!(write(&mut later, &[request(&tokens, 0.5)]), expected, "{place}");
                // Twice is once.
                assert_eq!(later.load_prefix(None, &saved), len, "{place}");
                later.check_pages().unwrap_or_else(|error| panic!("{place}: {error}"));
            }
        }
    }
}

#[test]
fn a_prefix_is_its_tenants_or_everybodys() {
    let tokens: Vec<Token> = (0..26).map(|i| i * 5 % 7).collect();
    let saved = saved(&mut toy(None, 64, 4), &tokens, 26);
    let as_other = || Request { tenant: Tenant(9), ..request(&tokens, 0.0) };
    let mut own = toy(None, 64, 4);
    own.load_prefix(Some(Tenant(3)), &saved);
    assert_eq!(shared(&mut own, as_other()), 0);
    let mut public = toy(None, 64, 4);
    public.load_prefix(None, &saved);
    assert_eq!(shared(&mut public, as_other()), 25);
    // What another tenant computes is not saved as this one's.
    let mut engine = toy(None, 64, 4);
    engine.save_prefix(Tenant(3), tokens.clone());
    drop(write(&mut engine, &[as_other()]));
    assert_eq!(engine.take_saved_prefix(), None);
}

#[test]
fn what_there_is_no_room_for_is_loaded_in_part_or_not_at_all() {
    let tokens: Vec<Token> = (0..40).map(|i| i * 5 % 7).collect();
    let whole = saved(&mut toy(None, 64, 4), &tokens, 40);
    let mut small = toy(None, 6, 4);
    assert_eq!(small.load_prefix(None, &whole), 24);
    small.check_pages().unwrap();
    let expected = write(&mut toy(None, 6, 4), &[request(&tokens[..20], 0.5)]);
    assert_eq!(write(&mut small, &[request(&tokens[..20], 0.5)]), expected);
    small.check_pages().unwrap();

    let mut windowed = saved(&mut toy(Some(7), 64, 4), &tokens, 40);
    assert!(windowed.groups[1].first < 12, "more than the window is there: {}", windowed.groups[1].first);
    assert_eq!(toy(Some(7), 6, 4).load_prefix(None, &windowed), 24);
    // Of a window no more pages are needed than there are.
    let narrow = ToyExecutor::new(Table::seeded(7, 3, 5), 4, 64, 1).with_window(7, 1);
    let mut narrow = Engine::new(Box::new(narrow), 1, 256);
    assert_eq!(narrow.load_prefix(None, &windowed), 40);
    narrow.check_pages().unwrap();
    assert_eq!(shared(&mut narrow, request(&tokens, 0.5)), 39);
    // Rows that the next one sees are missing.
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
fn nothing_is_saved_of_a_prompt_that_nobody_computed() {
    let tokens: Vec<Token> = (0..26).map(|i| i * 5 % 7).collect();
    let mut engine = toy(None, 64, 4);
    engine.save_prefix(Tenant::default(), vec![1; 9]);
    drop(write(&mut engine, &[request(&tokens, 0.0)]));
    assert_eq!(engine.take_saved_prefix(), None);
    // Later somebody does.
    drop(write(&mut engine, &[request(&[1; 12], 0.0)]));
    let found = engine.take_saved_prefix().expect("it was still wanted");
    assert_eq!((found.tokens.as_slice(), engine.take_saved_prefix()), (&[1; 9][..], None));
}
