//! Tests of saved rows of the cache: their bytes have not changed, and any change requires a new version of the
//! arithmetic.

use std::path::Path;

use foretoken_model::{
    ARITHMETIC_VERSION, Batch, CacheRows, CacheType, Checkpoint, Executor, Model, Options, PageId, PageTable, Span,
    WeightType,
};

use crate::fixture;

const LEN: usize = 40;

fn load(path: &Path, kind: CacheType, weights: Option<WeightType>) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    let options = Options { page_len: 8, pages: 12, weight_type: weights, ..Options::for_positions(96, 2) };
    Model::load(&checkpoint, options.with_cache(kind), &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn tables(model: &Model, first: u32) -> Vec<PageTable> {
    vec![(first..first + 5).map(PageId).collect(); model.capacity().groups.len()]
}

/// Runs a text whose rows are stored in these pages.
fn read(model: &mut Model, tables: &[PageTable]) {
    let tokens: Vec<u32> = (0..LEN as u32).map(|i| (i * i + 3) % 47).collect();
    let (start, wanted, hidden) = (0, &[0], &[]);
    let span = Span { sequence: 0, tables, start, tokens: &tokens, wanted, hidden, ..Span::default() };
    model.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap_or_else(|error| panic!("{error}"));
}

/// The saved rows of a group.
fn save(model: &Model, group: usize, table: &PageTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    model.save_rows(CacheRows { group, table, positions: 0..LEN }, &mut bytes).unwrap();
    assert_eq!(bytes.len(), model.saved_bytes(group).unwrap().of(LEN));
    bytes
}

/// The FNV-1a hash of the rows of all groups.
fn checksum(path: &Path, kind: CacheType, weights: Option<WeightType>) -> u64 {
    let mut model = load(path, kind, weights);
    let tables = tables(&model, 3);
    read(&mut model, &tables);
    let bytes = tables.iter().enumerate().flat_map(|(group, table)| save(&model, group, table));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The demo target, the only model here with heads wide enough for blocks.
fn demo() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-target")
}

#[test]
fn rows_that_change_raise_the_version_of_the_arithmetic() {
    let found = [
        checksum(&fixture("opt"), CacheType::F32, None),
        checksum(&fixture("llama"), CacheType::F16, None),
        checksum(&fixture("gemma3"), CacheType::BF16, None),
        checksum(&demo(), CacheType::Q8_0, None),
        checksum(&demo(), CacheType::F16, Some("q8_0".parse().unwrap())),
        checksum(&demo(), CacheType::F32, Some("q4_k".parse().unwrap())),
    ];
    let expected = [
        0xcb5a_6895_c4fe_215a_u64,
        0x29a5_2eb1_28a8_b76a,
        0x415d_5c43_1a89_c22c,
        0xc4b6_dcea_7f47_c1a9,
        0x20a6_140c_d727_7c69,
        0x0787_3c3d_d9f8_2884,
    ];
    let advice = "rows have changed: raise ARITHMETIC_VERSION, and put the new checksums here";
    assert_eq!((ARITHMETIC_VERSION, found), (1, expected), "{advice}: {found:016x?}");
}

#[test]
fn saved_rows_do_not_depend_on_pages() {
    for name in ["llama", "mistral", "gemma3"] {
        let mut model = load(&fixture(name), CacheType::F16, None);
        let (from, to) = (tables(&model, 0), tables(&model, 6));
        read(&mut model, &from);
        for (group, (from, to)) in from.iter().zip(&to).enumerate() {
            let saved = save(&model, group, from);
            model.load_rows(CacheRows { group, table: to, positions: 0..LEN }, &saved).unwrap();
            assert!(save(&model, group, to) == saved, "{name}");
            // The bytes of some of the rows are part of the bytes of all rows.
            let mut part = Vec::new();
            model.save_rows(CacheRows { group, table: to, positions: 7..19 }, &mut part).unwrap();
            let row_bytes = model.saved_bytes(group).unwrap().row;
            assert_eq!(part, saved[7 * row_bytes..19 * row_bytes], "{name}");
        }
        let gone = vec![PageId::GONE; 5];
        let refused = model.save_rows(CacheRows { group: 0, table: &gone, positions: 3..4 }, &mut Vec::new());
        let refused = refused.expect_err("the page is gone").to_string();
        assert_eq!(refused, "executor: failed: position 3 of a prefix was given back");
    }
}
