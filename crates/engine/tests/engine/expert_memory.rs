//! Tests that a network whose experts are not all in memory reuses the memory of evicted experts: its passes allocate
//! no more than those of a network whose experts are all packed. Matrices that are read column by column, or have a
//! quantization of their own, are not covered: each is unpacked into new memory before it is packed.

use std::path::Path;

use foretoken_model::{
    Batch, Checkpoint, Executor, ExpertNeed, Model, Options, PageId, PageTable, Span, WeightType, family,
};

const TOKENS: u32 = 60;

/// Maximum number of bytes that a pass of one row allocates, from the tenth pass on, and how many experts all passes
/// packed.
fn allocated(checkpoint: &Checkpoint, options: Options) -> (u64, usize) {
    let mut model = Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    let groups = model.capacity().groups.iter().map(|group| group.pages_for(TOKENS as usize) as u32);
    let tables: Vec<PageTable> = groups.map(|pages| (0..pages).map(PageId).collect()).collect();
    let (mut most, mut packed) = (0, 0);
    for start in 0..TOKENS {
        let tokens = [start * 37 % model.spec().vocabulary as u32];
        let (tables, tokens) = (&tables[..], &tokens[..]);
        let span = Span { tables, start: start as usize, tokens, wanted: &[0], ..Span::default() };
        let batch = Batch { spans: &[span], hidden_layers: &[] };
        let bytes = allocation_counter::measure(|| model.forward(&batch).unwrap_or_else(|e| panic!("{e}"))).bytes_total;
        packed += model.weights_read().packed;
        if start >= 10 {
            most = most.max(bytes);
        }
    }
    (most, packed)
}

#[test]
fn packing_an_expert_allocates_nothing() {
    for name in ["mixtral", "qwen3_moe", "olmoe"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
        let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{error}"));
        for weight_type in [None, Some("bf16"), Some("q8_0")] {
            let weight_type: Option<WeightType> = weight_type.and_then(|name| name.parse().ok());
            let network = family::read(&checkpoint, None).unwrap_or_else(|error| panic!("{error}"));
            let ExpertNeed { all, least } = network.expert_need(weight_type).unwrap_or_else(|error| panic!("{error}"));
            let options = Options { weight_type, ..Options::for_positions(TOKENS as usize, 1) };
            let (plain, none) = allocated(&checkpoint, options);
            assert_eq!(none, 0, "all experts are packed when the network is loaded");
            // At least room for the experts that a row chooses in a layer, so that a layer takes one round, as if all
            // experts were packed.
            let chosen = network.spec.experts.as_ref().map_or(0, |experts| experts.chosen);
            for expert_bytes in [chosen * least, all / 2, all - 1] {
                let (found, packed) = allocated(&checkpoint, Options { expert_bytes: Some(expert_bytes), ..options });
                let what = format!("{name} in {weight_type:?}, experts in {expert_bytes} of {all} bytes");
                println!("{what}: at most {found} bytes per pass, {plain} where all are packed; {packed} packed");
                assert!(packed > 10 && found <= plain + 64, "{what}: {found} bytes, {plain} without");
            }
        }
    }
}
