//! Models that share weights.

use foretoken_model::{CacheType, Options};

#[test]
fn models_that_share_weights_say_the_same_and_have_caches_of_their_own() {
    let folder = crate::fixture("llama");
    let tokens: Vec<u32> = (1..20).collect();
    let mut first = crate::load(&folder, 32, 1);
    let options = Options::for_positions(64, 2).with_cache(CacheType::F32);
    let mut second = first.share(options).expect("there is room");
    drop(crate::logits(&mut first, &[7, 7, 7], &[3]));
    let expected = crate::logits(&mut crate::load(&folder, 32, 1), &tokens, &[19]);
    assert_eq!(crate::logits(&mut second, &tokens, &[19]), expected);
    drop(first);
    assert_eq!(crate::logits(&mut second, &tokens, &[4]), expected);
    let wide = Options { key_type: CacheType::Q8_0, ..options };
    let refused = second.share(wide).map(drop).expect_err("heads of 8 hold no blocks of 32");
    assert!(refused.to_string().contains("a multiple of 32"), "{refused}");
}
