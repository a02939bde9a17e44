//! Tests of networks whose layers are read from a file for every pass: the bits are those of a network in memory,
//! whatever fits; damaged files are refused, and a read that fails ends the pass that waits for it.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use foretoken_model::{
    Backend, Batch, CacheType, Checkpoint, Executor, ExecutorError, LayerNeed, Loaded, ModelError, Offloading, Options,
    PackedFile, PageId, PageTable, Span, WeightType, family, write_layers,
};

use crate::{fixture, load_with, logits};

/// Dense networks of at least three layers, with windows, shared keys and values, per-layer inputs, and parallel
/// blocks.
const NETWORKS: [&str; 8] =
    ["baichuan", "ministral", "gemma4-per-layer", "gemma3", "smollm3", "qwen2-window", "olmo3", "cohere2"];

fn options(weight_type: Option<WeightType>, layer_bytes: usize) -> Options {
    let options = Options::for_positions(64, 2).with_cache(CacheType::F32);
    Options { weight_type, layer_bytes: Some(layer_bytes), ..options }
}

fn need(path: &Path, weight_type: Option<WeightType>) -> LayerNeed {
    let network = family::read(&Checkpoint::open(path).unwrap(), None).unwrap();
    network.layer_need(weight_type).unwrap_or_else(|error| panic!("{error}"))
}

/// Writes the file of a network's packed layers.
fn write(path: &Path, weight_type: Option<WeightType>, to: &Path) {
    let network = family::read(&Checkpoint::open(path).unwrap(), None).unwrap();
    let mut file = File::create(to).unwrap();
    write_layers(network, &options(weight_type, 0), "test", &mut file, &mut |_, _| ()).expect("it is written");
}

fn load(path: &Path, options: Options, file: &Path) -> Result<Loaded, ModelError> {
    let network = family::read(&Checkpoint::open(path).unwrap(), options.context)?;
    Offloading::new(PackedFile::open(file, "test")?).load(network, options, &mut |_, _| ())
}

fn tokens(vocabulary: usize) -> Vec<u32> {
    (0..24u32).map(|i| (i * 37 + 5) % vocabulary as u32).collect()
}

/// Runs a pass of one row.
fn pass(executor: &mut dyn Executor) -> Result<(), ExecutorError> {
    let tables: Vec<PageTable> = executor.capacity().groups.iter().map(|_| vec![PageId(0)]).collect();
    let span = Span { tables: &tables, tokens: &[1], wanted: &[0], ..Span::default() };
    executor.forward(&Batch { spans: &[span], hidden_layers: &[] })
}

/// Tries all numbers of layers in memory, in the file's type, as floats and in blocks.
#[test]
fn layers_that_are_read_give_the_bits_of_layers_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers");
    for name in NETWORKS {
        let path = fixture(name);
        for weight_type in [None, "bf16".parse().ok(), "q8_0".parse().ok()] {
            let mut plain = load_with(&path, options(weight_type, usize::MAX));
            let tokens = tokens(plain.spec().vocabulary);
            let expected = logits(&mut plain, &tokens, &[1]);
            write(&path, weight_type, &file);
            let LayerNeed { all, least } = need(&path, weight_type);
            assert!(least < all, "{name}: {least} of {all}");
            let step = ((all - least) / 6).max(1);
            let mut most_read = 0;
            for layer_bytes in (least..=all).step_by(step).chain([all - 1, all]) {
                let mut loaded = load(&path, options(weight_type, layer_bytes), &file).expect("it loads");
                for lengths in [&[24][..], &[1], &[5, 1, 1, 17]] {
                    let found = logits(&mut *loaded.executor, &tokens, lengths);
                    assert!(found == expected, "{name} in {weight_type:?}, {layer_bytes} bytes, passes of {lengths:?}");
                }
                most_read = most_read.max(loaded.executor.weights_read().bytes);
            }
            assert_eq!(most_read, plain.weights_read().bytes, "{name}: what a pass reads is the same");
        }
    }
}

/// An early exit shares the layers with the whole network, on two threads and in turn.
#[test]
fn executors_share_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (fixture("ministral"), folder.path().join("layers"));
    write(&path, None, &file);
    let memory = options(None, need(&path, None).least);
    let exit = Options { layers: Some(2), ..memory };
    let loaded = load(&path, memory, &file).expect("it loads");
    let (mut whole, mut early) = (loaded.executor, loaded.weights.executor(exit).expect("there is memory"));
    let tokens = tokens(loaded.spec.vocabulary);
    let mut plain = load_with(&path, options(None, usize::MAX));
    let expected_whole = logits(&mut plain, &tokens, &[1]);
    let expected_early = logits(&mut *early, &tokens, &[1]);
    assert!(expected_early != expected_whole);
    for lengths in [[3], [24], [1]] {
        assert!(logits(&mut *early, &tokens, &lengths) == expected_early, "{lengths:?}");
        assert!(logits(&mut *whole, &tokens, &lengths) == expected_whole, "{lengths:?}");
    }
    std::thread::scope(|scope| {
        let both = [(&mut whole, &expected_whole), (&mut early, &expected_early)].map(|(executor, expected)| {
            let tokens = &tokens;
            scope.spawn(move || (0..20).all(|_| logits(&mut **executor, tokens, &[1]) == *expected))
        });
        assert!(both.map(|one| one.join().expect("no thread panics")) == [true; 2]);
    });
}

/// A byte of a layer that stays in memory is found at load, one of a layer that is read fails its passes, until the
/// file is whole again.
#[test]
fn damaged_layers_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (fixture("ministral"), folder.path().join("layers"));
    write(&path, None, &file);
    let whole = fs::read(&file).unwrap();
    let LayerNeed { all, least } = need(&path, None);
    // As a disk would: the same file, which is also read under no name.
    let mut disk = OpenOptions::new().write(true).open(&file).unwrap();
    let mut replace = |at: usize, byte: u8| {
        disk.seek(SeekFrom::Start(at as u64)).and_then(|_| disk.write_all(&[byte])).unwrap();
    };
    let at = 4096 + 100;
    replace(at, !whole[at]);
    let refused = load(&path, options(None, all), &file).map(drop).expect_err("its first layer is damaged");
    assert!(refused.to_string().contains("checksum of layer 0: expected "), "{refused}");
    let mut executor = load(&path, options(None, least), &file).expect("no layer is read yet").executor;
    for _ in 0..2 {
        let error = pass(&mut *executor).expect_err("its first layer is damaged").to_string();
        assert!(error.contains("checksum of layer 0: expected ") && error.contains("layers: "), "{error}");
        assert!(error.ends_with("; it is removed, and made anew when the model is opened again"), "{error}");
        assert!(!file.exists(), "or all later runs would fail as well");
    }
    replace(at, whole[at]);
    pass(&mut *executor).expect("the layer is whole again");
    pass(&mut *executor).expect("and again");
    // A file that another program cuts is an error, never the end of the process.
    disk.set_len(8192).unwrap();
    let found: Vec<_> = (0..3).map(|_| pass(&mut *executor)).collect();
    let error = found.into_iter().find_map(Result::err).expect("the layers are gone").to_string();
    assert!(error.contains("bytes, found fewer: the file was shortened while it was used; "), "{error}");
    fs::write(&file, &whole).unwrap();
    let mut loaded = load(&path, options(None, least), &file).expect("it loads");
    pass(&mut *loaded.executor).expect("it runs");
}

/// Every other file is refused by name and field.
#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (fixture("ministral"), folder.path().join("layers"));
    write(&path, None, &file);
    let whole = fs::read(&file).unwrap();
    let open = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        PackedFile::open(&file, "test").map(drop)
    };
    let message = |result: Result<(), ModelError>| result.expect_err("it is refused").to_string();
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    assert!(message(open(b"")).contains("length: expected a file of packed layers, found 0 bytes"));
    assert!(message(open(&changed(0))).contains("magic: expected ftkpanel, found gtkpanel"));
    assert!(message(open(&changed(8))).contains("version: expected 1, found 0"));
    for at in [whole.len() - 1, whole.len() - 9, whole.len() - 16, whole.len() - 30] {
        let refused = message(open(&changed(at)));
        assert!(refused.contains("index"), "{refused}");
    }
    for len in [12, 4096, 5000, whole.len() - 1] {
        assert!(open(&whole[..len]).is_err(), "{len} bytes");
    }
    open(&whole).expect("it is whole");
    let other = message(PackedFile::open(&file, "another").map(drop));
    assert!(other.contains("identity: expected another, found test"), "{other}");
    assert!(PackedFile::open(folder.path(), "test").is_err(), "a folder");
    // A file of another network, with as many layers or fewer.
    for (name, expected) in [("gemma4-per-layer", "layer 0: expected "), ("olmo3", "layers: expected 3, found 4")] {
        let refused = load(&fixture(name), options(None, usize::MAX), &file).map(drop).expect_err("another network");
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    let least = need(&path, None).least;
    let refused = load(&path, options(None, least - 1), &file).map(drop).expect_err("too little memory");
    let expected = format!("layer_bytes {}: expected at least {least} bytes, room for two layers", least - 1);
    assert!(refused.to_string().contains(&expected), "{refused}");
}

#[test]
fn networks_with_experts_or_an_encoder_have_no_such_layers() {
    for name in ["mixtral", "t5", "gemma4-experts"] {
        let path = fixture(name);
        assert_eq!(need(&path, None), LayerNeed::default(), "{name}");
    }
}
