//! Tests of models that share weights.

use foretoken_model::{Backend, CacheType, Checkpoint, Cpu, Loaded, Options, family};

#[test]
fn models_that_share_weights_have_the_same_logits_and_separate_caches() {
    let folder = crate::fixture("llama");
    let tokens: Vec<u32> = (1..20).collect();
    let network = family::read(&Checkpoint::open(&folder).unwrap(), None).unwrap();
    let options = Options::for_positions(64, 2).with_cache(CacheType::F32);
    let few = Options::for_positions(32, 1).with_cache(CacheType::F32);
    let Loaded { executor: mut first, weights, .. } = Cpu.load(network, few, &mut |_, _| ()).unwrap();
    let mut second = weights.executor(options).expect("the cache fits");
    drop(crate::logits(&mut first, &[7, 7, 7], &[3]));
    let expected = crate::logits(&mut crate::load(&folder, 32, 1), &tokens, &[19]);
    assert_eq!(crate::logits(&mut second, &tokens, &[19]), expected);
    drop(first);
    assert_eq!(crate::logits(&mut second, &tokens, &[4]), expected);
    let wide = Options { key_type: CacheType::Q8_0, ..options };
    let refused = weights.executor(wide).map(drop).expect_err("heads of 8 hold no blocks of 32");
    assert!(refused.to_string().contains("a multiple of 32"), "{refused}");
}
