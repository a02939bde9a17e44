//! Hidden states of texts: each row equals the executor's row of that token computed alone, and folders, streams and
//! continued runs have the same rows.

use std::path::{Path, PathBuf};

use foretoken::hidden::shards::{Folder, Sizes, Written, stream};
use foretoken::hidden::{Extractor, RowType, Text};
use foretoken::models::{Cpu, Opened, Options};
use foretoken::settings::ModelSettings;
use foretoken::{Error, Token};
use foretoken_model::{Batch, PageId, Span};
use foretoken_weights::{Bytes, Weights, safetensors};

const LAYERS: [usize; 2] = [2, 1];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

fn settings(name: &str) -> ModelSettings {
    ModelSettings { path: Some(golden(name)), threads: Some(2), ..ModelSettings::default() }
}

fn open(name: &str, row_type: RowType) -> Extractor {
    Extractor::open(&settings(name), Some(&LAYERS), row_type, &mut |_, _| {}).expect("the fixture opens")
}

/// Texts of many lengths; most passes have several of them, and one text takes several passes.
fn texts() -> Vec<Text> {
    let text = |(i, len): (usize, usize)| Text {
        tokens: (0..len).map(|at| ((i * 31 + at * 7) % 64) as Token).collect(),
        prompt_len: len / 2,
    };
    [3, 1, 400, 70, 60, 512, 33, 1, 1, 90].into_iter().enumerate().map(text).collect()
}

/// Tokens, starts, lengths of prompts and rows, as bytes.
type Columns = [Vec<u8>; 4];

fn columns(file: &Weights) -> Columns {
    ["tokens", "starts", "prompt_lens", "hidden"].map(|name| file.get(name).expect("it has the tensor").bytes.to_vec())
}

/// The tensors of each file of a stream.
fn streamed(extractor: &mut Extractor, texts: &[Text]) -> Vec<Columns> {
    #[derive(Debug)]
    struct Any(#[allow(dead_code)] String);
    impl From<Error> for Any {
        fn from(error: Error) -> Self {
            Self(error.to_string())
        }
    }
    impl From<std::io::Error> for Any {
        fn from(error: std::io::Error) -> Self {
            Self(error.to_string())
        }
    }
    let mut bytes = Vec::new();
    stream::<Any>(extractor, texts, &mut bytes, &mut |_| true).expect("it runs");
    let (mut rest, mut files) = (&bytes[..], Vec::new());
    while let Some((len, behind)) = rest.split_first_chunk::<8>() {
        let (file, behind) = behind.split_at(u64::from_le_bytes(*len) as usize);
        files.push(safetensors::parse("stream", Bytes::from_vec(file.to_vec())).expect("it is well-formed"));
        rest = behind;
    }
    for (number, file) in files.iter().enumerate() {
        assert_eq!(file.metadata("texts"), Some(format!("{number}..{}", number + 1).as_str()));
    }
    files.iter().map(columns).collect()
}

#[test]
fn rows_equal_those_of_an_executor_that_runs_one_token_at_a_time() {
    // Full attention, sliding windows, and other networks.
    for name in ["llama", "ministral", "gemma3", "gpt2"] {
        let found = streamed(&mut open(name, RowType::F32), &texts());
        let opened = Opened::at(&golden(name)).expect("the fixture opens");
        let options = Options::for_positions(512, 1);
        let mut executor = opened.load(&Cpu, options, &mut |_, _| {}).expect("it loads").executor;
        let pages: Vec<Vec<PageId>> =
            executor.capacity().groups.iter().map(|group| (0..group.pages as u32).map(PageId).collect()).collect();
        for (text, columns) in texts().iter().zip(found) {
            let mut expected = Vec::new();
            for (start, token) in text.tokens.iter().enumerate() {
                let tokens = [*token];
                let span = Span { tables: &pages, start, tokens: &tokens, certain: 1, hidden: &[0], ..Span::default() };
                executor.forward(&Batch { spans: &[span], hidden_layers: &[1, 0] }).expect("it runs");
                let outputs = executor.outputs();
                let row = (0..2).flat_map(|layer| outputs.hidden(layer, 0)).flat_map(|number| number.to_le_bytes());
                expected.extend(row);
            }
            assert!(columns[3] == expected, "{name}: a text of {} tokens", text.tokens.len());
            assert_eq!(columns[0], text.tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>());
            assert_eq!(columns[1], [0, text.tokens.len() as i64].map(i64::to_le_bytes).concat());
            assert_eq!(columns[2], (text.prompt_len as i32).to_le_bytes());
        }
    }
}

/// Shards so small that each has a few texts, in a folder without a limit.
const SMALL: Sizes = Sizes { shard: 40_000, all: 1 << 30 };

/// The shards of a folder.
fn shards(folder: &Path) -> Vec<Weights> {
    let path = |number: usize| folder.join(format!("{number:05}.safetensors"));
    let there = (0..).map(path).take_while(|path| path.exists());
    there.map(|path| safetensors::open(path).expect("it is well-formed")).collect()
}

/// The tensors of all shards concatenated, with the starts of each shard after those of the shards before.
fn together(folder: &Path) -> Columns {
    let (mut all, mut tokens): (Columns, i64) = (Columns::default(), 0);
    for shard in shards(folder) {
        let columns = columns(&shard);
        let starts = columns[1].chunks_exact(8).map(|start| i64::from_le_bytes(start.try_into().expect("eight")));
        let skipped = if tokens == 0 { 0 } else { 1 };
        all[1].extend(starts.skip(skipped).flat_map(|start| (start + tokens).to_le_bytes()));
        tokens += columns[0].len() as i64 / 4;
        [0, 2, 3].into_iter().for_each(|column| all[column].extend(&columns[column]));
    }
    all
}

fn fill(extractor: &mut Extractor, path: &Path, texts: &[Text], sizes: Sizes, passes: usize) -> Written {
    let mut folder = Folder::open(path, extractor, texts).expect("it opens");
    let mut left = passes;
    let mut keep_going = |_| {
        left -= 1;
        left > 0
    };
    folder.fill(extractor, texts, sizes, &mut keep_going).expect("it runs")
}

#[test]
fn runs_that_were_stopped_and_continued_have_the_rows_of_one_run() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let (at, texts) = (|name: &str| place.path().join(name), texts());
    let mut extractor = open("llama", RowType::F32);
    let written = fill(&mut extractor, &at("whole"), &texts, SMALL, usize::MAX);
    let tokens = texts.iter().map(|text| text.tokens.len()).sum();
    assert_eq!((written.texts, written.tokens, written.is_full), (texts.len(), tokens, false));
    assert!(written.shards > 3, "{written:?}");
    let whole = together(&at("whole"));
    for (number, columns) in columns_of_each(&whole).into_iter().zip(streamed(&mut extractor, &texts)).enumerate() {
        assert!(columns.0 == columns.1, "text {number} of the stream");
    }
    for shard in shards(&at("whole")) {
        let len = std::fs::metadata(shard.source()).expect("it is there").len();
        let texts = shard.get("prompt_lens").expect("it is there").shape[0];
        assert!(len <= SMALL.shard || texts == 1, "{}: {len} bytes of {texts} texts", shard.source());
    }
    // Runs that were stopped after one or two passes keep their texts.
    for passes in 1..3 {
        let path = at(&format!("stopped-{passes}"));
        let written = fill(&mut open("llama", RowType::F32), &path, &texts, SMALL, passes);
        assert!(written.texts > 0 && written.texts < texts.len(), "{written:?}");
        let written = fill(&mut open("llama", RowType::F32), &path, &texts, SMALL, usize::MAX);
        assert_eq!(written.texts, texts.len());
        assert!(together(&path) == whole, "{passes} passes");
    }
    // A run that was killed while it wrote the third shard: the first two are left, and half a temporary file.
    let killed = at("killed");
    fill(&mut extractor, &killed, &texts, SMALL, usize::MAX);
    let path = |number: usize| killed.join(format!("{number:05}.safetensors"));
    (2..written.shards).for_each(|number| std::fs::remove_file(path(number)).expect("it can be removed"));
    let half = killed.join(".00002.safetensors.1-0.part");
    std::fs::write(&half, "half").expect("it can be written");
    assert_eq!(fill(&mut open("llama", RowType::F32), &killed, &texts, SMALL, usize::MAX), written);
    assert!(!half.exists());
    for (one, other) in shards(&at("whole")).iter().zip(shards(&killed)) {
        assert!(columns(one) == columns(&other) && one.metadata("texts") == other.metadata("texts"));
    }
    // A run with more texts, and one with nothing to do.
    let growing = at("growing");
    fill(&mut extractor, &growing, &texts[..4], SMALL, usize::MAX);
    fill(&mut extractor, &growing, &texts, SMALL, usize::MAX);
    assert!(together(&growing) == whole);
    let before = fill(&mut extractor, &growing, &texts, SMALL, usize::MAX);
    assert_eq!((before.texts, before.tokens), (texts.len(), tokens));
}

/// The tensors split into those of files with one text each.
fn columns_of_each(all: &Columns) -> Vec<Columns> {
    let starts: Vec<usize> =
        all[1].chunks_exact(8).map(|start| u64::from_le_bytes(start.try_into().expect("eight")) as usize).collect();
    let row = all[3].len() * 4 / all[0].len();
    let of = |(number, ends): (usize, &[usize])| {
        let [start, end] = [ends[0], ends[1]];
        let starts = [0, (end - start) as i64].map(i64::to_le_bytes).concat();
        let prompt_len = all[2][4 * number..][..4].to_vec();
        [all[0][4 * start..4 * end].to_vec(), starts, prompt_len, all[3][row * start..row * end].to_vec()]
    };
    starts.windows(2).enumerate().map(of).collect()
}

#[test]
fn a_folder_never_exceeds_its_limit() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let mut extractor = open("llama", RowType::Bf16);
    let mut before = 0;
    for (i, all) in [0, 20_000, 90_000, 150_000].into_iter().enumerate() {
        let sizes = Sizes { all, ..SMALL };
        let path = place.path().join(i.to_string());
        let written = fill(&mut extractor, &path, &texts(), sizes, usize::MAX);
        assert!(written.is_full && written.bytes <= all && written.texts >= before, "{written:?} of {all}");
        let on_disk: u64 =
            std::fs::read_dir(&path).expect("it is there").map(|it| it.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(on_disk, written.bytes);
        // A full folder stays as it is; with more room the run continues.
        assert_eq!(fill(&mut extractor, &path, &texts(), sizes, usize::MAX), written);
        assert_eq!(fill(&mut extractor, &path, &texts(), SMALL, usize::MAX).texts, texts().len());
        before = written.texts;
    }
    assert!(before > 0);
}

#[test]
fn rows_of_sixteen_bits_are_those_of_thirty_two_rounded() {
    let exact = streamed(&mut open("llama", RowType::F32), &texts());
    for row_type in [RowType::Bf16, RowType::F16] {
        for (exact, rounded) in exact.iter().zip(streamed(&mut open("llama", row_type), &texts())) {
            let exact = exact[3].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four")));
            let rounded = rounded[3].chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
            let bits = |number: f32| match row_type {
                RowType::F16 => foretoken_kernels::dtype::f16::from_f32(number).to_bits(),
                _ => foretoken_kernels::dtype::bf16::from_f32(number).to_bits(),
            };
            assert!(exact.map(bits).eq(rounded), "{row_type}");
        }
    }
}

#[test]
fn shards_of_something_else_are_refused_by_name() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let path = place.path().join("rows");
    fill(&mut open("llama", RowType::Bf16), &path, &texts(), SMALL, usize::MAX);
    let first = path.join("00000.safetensors").display().to_string();
    let refused = |extractor: &Extractor, texts: &[Text]| match Folder::open(&path, extractor, texts) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    };
    let of = |settings: &ModelSettings, layers: &[usize], row_type| {
        refused(&Extractor::open(settings, Some(layers), row_type, &mut |_, _| {}).expect("it opens"), &texts())
    };
    let here = |name: &str| golden(name).canonicalize().expect("it is there").display().to_string();
    let expected = format!("{}, as this run has it, found {}", here("llama-biased"), here("llama"));
    assert_eq!(of(&settings("llama-biased"), &LAYERS, RowType::Bf16), format!("{first}: model: expected {expected}"));
    let expected = "layers: expected 1,2, as this run has it, found 2,1";
    assert_eq!(of(&settings("llama"), &[1, 2], RowType::Bf16), format!("{first}: {expected}"));
    let expected = "hidden_type: expected f32, as this run has it, found bf16";
    assert_eq!(of(&settings("llama"), &LAYERS, RowType::F32), format!("{first}: {expected}"));
    let short = ModelSettings { ctx_size: Some(64), ..settings("llama") };
    let expected = "ctx_size: expected 64, as this run has it, found 512";
    assert_eq!(of(&short, &LAYERS, RowType::Bf16), format!("{first}: {expected}"));
    let rounded = ModelSettings { dtype: Some("q8_0".parse().expect("a type")), ..settings("llama") };
    let expected = "dtype: expected q8_0, as this run has it, found as they are";
    assert_eq!(of(&rounded, &LAYERS, RowType::Bf16), format!("{first}: {expected}"));

    let extractor = open("llama", RowType::Bf16);
    for (field, change) in [
        ("tokens", (|texts| texts[0].tokens[1] += 1) as fn(&mut Vec<Text>)),
        ("prompt_lens", |texts| texts[0].prompt_len += 1),
    ] {
        let mut others = texts();
        change(&mut others);
        let error = refused(&extractor, &others);
        let expected = format!("{first}: {field}: expected those of texts 0..");
        assert!(error.starts_with(&expected) && error.ends_with(" of this run, found others"), "{error}");
    }
    let error = refused(&extractor, &texts()[..1]);
    let expected = format!("{first}: texts: expected some of 0..1, which are not in the shards before, found 0..");
    assert!(error.starts_with(&expected), "{error}");
    std::fs::remove_file(path.join("00001.safetensors")).expect("it can be removed");
    let expected = "expected shards that are numbered from 00000 without a gap, the next 00001";
    let expected = format!("{}: {expected}, found 00002.safetensors", path.display());
    assert_eq!(refused(&extractor, &texts()), expected);
    std::fs::write(&first, "half").expect("it can be written");
    let error = refused(&extractor, &texts());
    assert_eq!(error, format!("{first}: header length: expected 8 bytes, found 4 bytes"));
    let Err(error) = Folder::open(&place.path().join("no/such"), &extractor, &texts()) else { panic!("it was made") };
    assert!(error.to_string().contains("no/such: cannot be written: "), "{error}");
}

#[test]
fn texts_that_the_network_cannot_run_are_reported_or_truncated() {
    let extractor = open("llama", RowType::Bf16);
    let text = |tokens: Vec<Token>| Text { tokens, prompt_len: 600 };
    let problem = |tokens| extractor.problem(&text(tokens));
    assert_eq!(problem(vec![1, 95]), None);
    assert_eq!(problem(vec![]).as_deref(), Some("tokens: expected at least one, found none"));
    let expected = "token 1: expected a number below 96 (the vocabulary), found 96";
    assert_eq!(problem(vec![1, 96]).as_deref(), Some(expected));
    let mut long = text(vec![1; 513]);
    assert!(extractor.cut(&mut long));
    assert_eq!((long.tokens.len(), long.prompt_len), (512, 512));
    assert!(!extractor.cut(&mut long));
}
