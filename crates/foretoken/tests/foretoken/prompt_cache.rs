//! The prompt cache: the same answers with and without it, and a file that is always complete.

use std::path::Path;

use foretoken::{Answer, CacheType, Conversation, Error, Generator, Settings};

use crate::generators::{run, settings};

/// More than two pages of the cache.
const LONG: &str = "once upon a time, there was a little dog who lived in a big house with a boy, and they were happy. \
     one day the dog saw a bird in the tree. the bird said hello to the dog, and the dog said hello to the bird. they \
     played in the park all day, and the boy played with them. then it was night, and the dog went home with the boy";
/// The beginning of it.
const BEGINNING: &str = "once upon a time, there was a little dog who lived in a big house with a boy, and they were \
     happy. one day the dog saw a bird in the tree. the bird said hello to the dog,";

fn with_cache(folder: &tempfile::TempDir, file: &Path) -> Settings {
    let mut settings = settings(folder);
    settings.model.prompt_cache = Some(file.to_path_buf());
    settings.sampling.seed = Some(7);
    settings
}

/// Answers to prompts, with log-probabilities, after which the prompt cache is written.
fn answers(settings: &Settings, prompts: &[&str]) -> Result<Vec<Answer>, Error> {
    let mut generator = Generator::open(settings)?;
    let mut requests = prompts.iter().map(|prompt| generator.request(*prompt)).collect::<Result<Vec<_>, _>>()?;
    requests.iter_mut().for_each(|request| request.log_probabilities = true);
    let answers = run(&mut generator, &requests);
    generator.keep(&answers)?;
    Ok(answers)
}

/// Tokens and the bits of their log-probabilities.
fn written(answers: &[Answer]) -> Vec<Vec<(u32, Option<u32>)>> {
    let bits =
        |answer: &Answer| answer.emitted.iter().map(|e| (e.token, e.log_probability.map(f32::to_bits))).collect();
    answers.iter().map(bits).collect()
}

#[test]
fn answers_are_bit_identical_with_and_without_the_cache() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let kinds = CacheType::ALL;
    for (number, types) in [[kinds[1]; 2], [kinds[0]; 2], [kinds[2], kinds[3]], [kinds[3]; 2]].into_iter().enumerate() {
        let file = folder.path().join(format!("cache-{number}"));
        for temperature in [0.0, 1.0] {
            let mut settings = with_cache(&folder, &file);
            [settings.model.cache_type_k, settings.model.cache_type_v] = types;
            settings.sampling.temperature = Some(temperature);
            let without = Settings {
                model: foretoken::settings::ModelSettings { prompt_cache: None, ..settings.model.clone() },
                ..settings.clone()
            };
            let expected = answers(&without, &[LONG]).expect("the request is valid");
            for shared in [temperature > 0.0, true] {
                let found = answers(&settings, &[LONG]).expect("the request is valid");
                assert_eq!(written(&found), written(&expected), "{types:?} at {temperature}");
                let prompt = found[0].prompt.len();
                assert_eq!(found[0].stats.prompt_tokens_shared, if shared { prompt - 1 } else { 0 }, "{types:?}");
            }
        }
    }
}

#[test]
fn a_file_is_written_when_it_does_not_have_the_prompt() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("cache");
    let settings = with_cache(&folder, &file);
    let bytes = || std::fs::read(&file).expect("it is there");
    let shared = |settings: &Settings, prompts: &[&str]| {
        let found = answers(settings, prompts).expect("the request is valid");
        found.iter().map(|answer| answer.stats.prompt_tokens_shared).max()
    };
    drop(answers(&settings, &[LONG]).expect("the request is valid"));
    let first = bytes();
    // The file has the same prompt, and a prefix of it.
    for prompt in [LONG, BEGINNING] {
        drop(answers(&settings, &[prompt]).expect("the request is valid"));
        assert!(bytes() == first, "{prompt}");
    }
    // For a prompt with another end the common prefix is reused, and the file is written.
    let other = format!("{BEGINNING} and a cat");
    let mut read_only = settings.clone();
    read_only.model.prompt_cache_ro = true;
    let common = shared(&read_only, &[&other]);
    assert!(common > Some(32) && bytes() == first, "{common:?}");
    assert_eq!(shared(&settings, &[&other]), common);
    assert!(bytes() != first, "the file has the prompt that was computed last");
    assert!(shared(&read_only, &[&other]) > common);
    // For several prompts their common prefix is written.
    std::fs::remove_file(&file).expect("it is there");
    drop(answers(&settings, &[LONG, &other]).expect("the requests are valid"));
    assert_eq!(shared(&read_only, &[LONG]), common);
    let leftovers = std::fs::read_dir(folder.path()).expect("it is there").count();
    assert_eq!(leftovers, 2, "the cache and the costs");
    std::fs::remove_file(&file).expect("it is there");
    let missing = Generator::open(&read_only).map(drop).expect_err("there is nothing to read").to_string();
    assert!(missing.starts_with(&format!("{}: cannot be read: ", file.display())), "{missing}");
    read_only.model.prompt_cache = None;
    let alone = Generator::open(&read_only).map(drop).expect_err("there is no file").to_string();
    assert_eq!(alone, "prompt_cache_ro: expected prompt_cache beside it, found none");
}

#[test]
fn the_first_prompt_of_a_conversation_is_kept() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("cache");
    let settings = with_cache(&folder, &file);
    let talk = |questions: &[&str]| {
        let mut generator = Generator::open(&settings).expect("the request is valid");
        let prompter = generator.prompter.clone();
        let mut conversation = Conversation::new(&prompter, Some("you are a dog")).expect("it can chat");
        let mut shared = Vec::new();
        for question in questions {
            conversation.ask(*question);
            let request = conversation.request().expect("the request is valid");
            let found = run(&mut generator, &[request]);
            generator.keep(&found).expect("it can be written");
            shared.push(found[0].stats.prompt_tokens_shared);
            conversation.clear();
        }
        (shared, std::fs::read(&file).expect("it was written"))
    };
    let (first, begun) = talk(&["what do you eat?"]);
    assert_eq!(first, [0]);
    let (again, same) = talk(&["what do you eat?"]);
    assert!(again[0] > 5 && same == begun, "{again:?}");
    // For several conversations their common prefix is written.
    let (other, _) = talk(&["where do you live?", "what do you eat?"]);
    assert!(other[0] > 2 && other[0] < again[0], "{other:?}");
}

#[test]
fn a_file_that_does_not_fit_is_refused_by_name_and_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("cache");
    let settings = with_cache(&folder, &file);
    drop(answers(&settings, &[LONG]).expect("the request is valid"));
    let whole = std::fs::read(&file).expect("it is there");
    let refused = |settings: &Settings| Generator::open(settings).map(drop).expect_err("it does not fit").to_string();
    let mut other = settings.clone();
    other.model.cache_type_v = CacheType::Q8_0;
    assert_eq!(refused(&other), format!("{}: cache_type_v: expected q8_0, found f16", file.display()));
    let mut other = settings.clone();
    other.model.path = settings.speculation.model_draft.first().cloned();
    assert!(refused(&other).starts_with(&format!("{}: model: expected ", file.display())), "{}", refused(&other));
    assert!(std::fs::read(&file).expect("it is there") == whole);
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    std::fs::write(&file, &damaged).expect("it can be written");
    assert!(refused(&settings).starts_with(&format!("{}: checksum: expected ", file.display())));
    assert!(std::fs::read(&file).expect("it is there") == damaged, "it is not overwritten");
    for wrong in [&b""[..], b"not a cache"] {
        std::fs::write(&file, wrong).expect("it can be written");
        assert!(refused(&settings).starts_with(&format!("{}: magic: expected ", file.display())));
    }
    std::fs::remove_file(&file).expect("it is there");
    std::fs::create_dir(&file).expect("a folder can be made");
    assert!(refused(&settings).contains("expected a regular file, found a folder"), "{}", refused(&settings));
}

#[test]
fn concurrent_writers_leave_one_complete_file() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("cache");
    let settings = with_cache(&folder, &file);
    drop(answers(&settings, &[LONG]).expect("the request is valid"));
    // A temporary file of a process that was killed is never read, and removed by the next writer.
    std::fs::write(folder.path().join(".cache.1-0.part"), b"half of").expect("it can be written");
    let prompts = ["the little dog", "a big house", LONG, "they were happy"];
    std::thread::scope(|scope| {
        for prompt in prompts {
            let settings = settings.clone();
            scope
                .spawn(move || (0..3).for_each(|_| drop(answers(&settings, &[prompt]).expect("whole files are read"))));
        }
    });
    let mut read_only = settings.clone();
    read_only.model.prompt_cache_ro = true;
    let found = prompts.map(|prompt| answers(&read_only, &[prompt]).expect("the request is valid")[0].clone());
    let all_of = |answer: &Answer| answer.stats.prompt_tokens_shared + 1 == answer.prompt.len();
    assert!(found.iter().any(all_of), "the file has one of them");
    let parts = std::fs::read_dir(folder.path()).expect("it is there");
    let parts =
        parts.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|e| e == "part")));
    assert_eq!(parts.count(), 0, "no temporary file is left, not even the killed process's");
}

#[test]
fn files_that_cannot_be_written_are_refused_before_the_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = with_cache(&folder, &folder.path().join("missing/file"));
    let refused = Generator::open(&settings).err().expect("it cannot be written").to_string();
    assert!(refused.contains("missing/file: cannot be written: "), "{refused}");
    let mut remembering = settings.clone();
    remembering.model.prompt_cache = None;
    remembering.speculation.memory.lookup_cache_dynamic = Some(folder.path().join("missing/texts"));
    let refused = Generator::open(&remembering).err().expect("it cannot be written").to_string();
    assert!(refused.contains("missing/texts: cannot be written: "), "{refused}");
    assert!(!folder.path().join("missing").exists());
    let settings = with_cache(&folder, &folder.path().join("file"));
    Generator::open(&settings).expect("it can be written");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("part") && name != "file"), "{left:?}");
}
