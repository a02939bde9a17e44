//! `logits`: one pass, several passes and other thread counts give the same file.

use crate::{golden, run, words};

#[test]
fn the_division_into_passes_changes_no_byte() {
    let tokens: Vec<String> = (0..70).map(|i| (i * 37 % 96).to_string()).collect();
    let tokens = tokens.join(",");
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["llama", "gpt2"] {
        let model = golden(name);
        let file = |options: &str| {
            let path = folder.path().join("out.safetensors").display().to_string();
            run(&[&["logits", "-m", &model, "--tokens", &tokens, "-o", &path, "--force"], words(options).as_slice()]
                .concat())
            .ok();
            std::fs::read(path).expect("the file was written")
        };
        let whole = file("");
        for options in ["--one-by-one", "--rows 4", "--rows 7", "--rows 1000", "-t 1", "-t 3 --rows 33"] {
            assert!(file(options) == whole, "{name} {options}");
        }
    }
}

#[test]
fn the_file_has_one_row_per_token() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("out.safetensors").display().to_string();
    run(&["logits", "--tokens", "5,17,3", "-o", &path]).ok();
    let weights = foretoken_weights::safetensors::open(&path).expect("the file is well-formed");
    let logits = weights.require("logits").expect("it has logits");
    assert_eq!((logits.shape.as_slice(), logits.dtype), (&[3, 8192][..], foretoken_weights::Dtype::F32));
}

/// The rotary embedding depends on the longest sequence: below or above the trained context of 128.
#[test]
fn the_context_size_selects_the_rotary_embedding() {
    let (folder, model) = (tempfile::tempdir().expect("a folder can be made"), golden("phi3-long-below"));
    let of_context = |context: &str| {
        let path = folder.path().join("out.safetensors").display().to_string();
        run(&["logits", "-m", &model, "--tokens", "5,17,3", "-o", &path, "--force", "-c", context]).ok();
        std::fs::read(path).expect("the file was written")
    };
    assert!(of_context("3") == of_context("128"));
    assert!(of_context("129") == of_context("512"));
    assert!(of_context("128") != of_context("129"));
}
