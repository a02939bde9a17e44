//! Attention sees logical positions and nothing else: not pages, not siblings, not where an ancestor is stored.
//!
//! A random tree on a random prefix is laid out in a cache of shuffled slots, whose unused ones hold NaN. Every node
//! must come out as it does alone, with its path stored as a plain sequence, to the bit, and near what the naive
//! specification says of the rows as the cache rounded them.

use foretoken_kernels::attention::{Arguments, CacheType, Places, Scratch, Side, attention};
use foretoken_kernels::{Compute, naive};
use foretoken_testkit::rows::{Numbers, first_difference};
use proptest::prelude::*;

use crate::{COMPUTES, assert_same_bits, name};

/// Positions of a split. Scenes are made to lie around its borders; no test depends on its being right.
const SPLIT: usize = 512;

/// Keys, values and queries of a prefix and a tree behind it, by logical identity rather than by slot.
#[derive(Clone, Debug)]
struct Scene {
    types: [CacheType; 2],
    soft_cap: Option<f32>,
    /// One a head, or none.
    slopes: Vec<f32>,
    /// One a head, or none.
    sinks: Vec<f32>,
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    prefix: usize,
    /// For each node the earlier node that it continues.
    parents: Vec<Option<usize>>,
    /// `[prefix + nodes, kv_heads * head_dim]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[nodes, heads * head_dim]`.
    queries: Vec<f32>,
}

impl Scene {
    fn random(numbers: &mut Numbers, head_dim: usize, prefix: usize, parents: Vec<Option<usize>>) -> Self {
        let (kv_heads, group) = (1 + numbers.below(3), 1 + numbers.below(8));
        let mut kind = || {
            let kind = CacheType::ALL[numbers.below(4)];
            if head_dim.is_multiple_of(kind.block()) { kind } else { CacheType::F16 }
        };
        let types = [kind(), kind()];
        let (width, nodes) = (kv_heads * head_dim, parents.len());
        let soft_cap = (numbers.below(4) == 0).then(|| 0.2 + numbers.unit().abs());
        let sloped = numbers.below(4) == 0;
        let sunk = numbers.below(3) == 0;
        // Windows around a row's own position, a tile's edge and a split's.
        let window = [1, 2, 1 + numbers.below(40), 500 + numbers.below(30), 1 + numbers.below(1100)][numbers.below(5)];
        Self {
            types,
            soft_cap,
            slopes: if sloped { (0..kv_heads * group).map(|_| numbers.unit().abs() / 20.0).collect() } else { vec![] },
            // From below all scores to above them.
            sinks: if sunk { (0..kv_heads * group).map(|_| 4.0 * numbers.unit()).collect() } else { vec![] },
            window: (numbers.below(2) == 0).then_some(window),
            heads: kv_heads * group,
            kv_heads,
            head_dim,
            prefix,
            parents,
            keys: numbers.units((prefix + nodes) * width),
            values: numbers.units((prefix + nodes) * width),
            queries: numbers.units(nodes * kv_heads * group * head_dim),
        }
    }

    /// A tree of up to 12 nodes on a prefix.
    fn tree(numbers: &mut Numbers, head_dim: usize, prefix: usize) -> Self {
        let nodes = 1 + numbers.below(12);
        let parents = (0..nodes).map(|i| numbers.below(i + 1).checked_sub(1)).collect();
        Self::random(numbers, head_dim, prefix, parents)
    }

    fn chain(numbers: &mut Numbers, head_dim: usize, prefix: usize, nodes: usize) -> Self {
        Self::random(numbers, head_dim, prefix, (0..nodes).map(|i| i.checked_sub(1)).collect())
    }

    fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn rows(&self) -> usize {
        self.prefix + self.parents.len()
    }

    /// The query of one node.
    fn query(&self, node: usize) -> &[f32] {
        let width = self.heads * self.head_dim;
        &self.queries[node * width..][..width]
    }

    /// Rows that a node sees: the prefix, its ancestors from the root down, itself.
    fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![self.prefix + node];
        let mut at = self.parents[node];
        while let Some(parent) = at {
            path.push(self.prefix + parent);
            at = self.parents[parent];
        }
        path.reverse();
        path
    }

    /// Keys and values in which row i lies at `slots[i]`, and NaN everywhere else.
    fn cache(&self, slots: &[u32], room: usize) -> [Side; 2] {
        let Self { types, kv_heads, head_dim, .. } = *self;
        let make = [Side::keys, Side::values];
        [0, 1].map(|which| {
            let mut side = make[which](types[which], room, kv_heads, head_dim).expect("memory");
            (0..room as u32).for_each(|slot| side.store(slot, &vec![f32::NAN; self.width()]));
            let rows = [&self.keys, &self.values][which].chunks_exact(self.width());
            rows.zip(slots).for_each(|(row, slot)| side.store(*slot, row));
            side
        })
    }

    fn attend(&self, compute: &Compute, cache: &[Side; 2], queries: &[f32], places: &[Places<'_>]) -> Vec<f32> {
        let arguments = Arguments {
            soft_cap: self.soft_cap,
            slopes: &self.slopes,
            sinks: &self.sinks,
            window: self.window,
            ..Arguments::new(self.heads, 0.25, &cache[0], &cache[1])
        };
        let mut out = vec![f32::NAN; queries.len()];
        attention(compute, &arguments, queries, places, &mut Scratch::default(), &mut out);
        out
    }

    /// A node with its path stored as a plain sequence in a cache of its own.
    fn alone(&self, compute: &Compute, node: usize) -> Vec<f32> {
        let rows: Vec<usize> = (0..self.prefix).chain(self.path(node)).collect();
        let mut slots = vec![0; self.rows()];
        let room = rows.len();
        // Rows of other paths are overwritten by the last position, which is stored after them.
        slots.fill(room as u32 - 1);
        rows.iter().enumerate().for_each(|(i, row)| slots[*row] = i as u32);
        let mut cache = self.cache(&slots, room);
        for (side, all) in cache.iter_mut().zip([&self.keys, &self.values]) {
            let last = rows[room - 1];
            side.store(room as u32 - 1, &all[last * self.width()..][..self.width()]);
        }
        let slots: Vec<u32> = (0..room as u32).collect();
        self.attend(compute, &cache, self.query(node), &[Places { prefix: &slots, tail: &[] }])
    }

    /// All nodes alone, on the plainest path.
    fn expected(&self) -> Vec<f32> {
        (0..self.parents.len()).flat_map(|node| self.alone(&COMPUTES[0], node)).collect()
    }

    /// What the specification says of one node, of the rows as they are stored.
    fn specified(&self, node: usize) -> Vec<f32> {
        let slots: Vec<u32> = (0..self.rows() as u32).collect();
        let cache = self.cache(&slots, self.rows());
        let rows: Vec<usize> = (0..self.prefix).chain(self.path(node)).collect();
        let [keys, values] = [0, 1].map(|s| rows.iter().map(|r| cache[s].row(*r as u32)).collect::<Vec<_>>());
        let group = self.heads / self.kv_heads;
        let of_head = |(head, query): (usize, &[f32])| {
            let part = |all: &[Vec<f32>]| -> Vec<Vec<f32>> {
                all.iter().map(|row| row[head / group * self.head_dim..][..self.head_dim].to_vec()).collect()
            };
            let (keys, values) = (part(&keys), part(&values));
            let keys: Vec<&[f32]> = keys.iter().map(Vec::as_slice).collect();
            let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
            let slope = self.slopes.get(head).copied().unwrap_or(0.0);
            let sink = self.sinks.get(head).copied();
            let how = naive::Scores { scale: 0.25, soft_cap: self.soft_cap, slope, window: self.window, sink };
            naive::attention(query, &keys, &values, how)
        };
        self.query(node).chunks_exact(self.head_dim).enumerate().flat_map(of_head).collect()
    }

    /// Random distinct slots for all rows, and how many slots there are. Sometimes in order from a multiple of sixteen
    /// on, as an engine's pages of 32 give them; sometimes in pages of another length.
    fn slots(&self, numbers: &mut Numbers) -> (Vec<u32>, usize) {
        let page_len = [1, 3, 8, 16, 24, 32][numbers.below(6)];
        let pages = self.rows().div_ceil(page_len) + numbers.below(3);
        let order = if numbers.below(2) == 0 { (0..pages).collect() } else { numbers.permutation(pages) };
        let slot = |row: usize| (order[row / page_len] * page_len + row % page_len) as u32;
        ((0..self.rows()).map(slot).collect(), pages * page_len)
    }
}

/// Prefix and tail slots of every node. Either as the decoder has them, the committed rows and the ancestors; or of a
/// chain all in the prefix; or with the split between them anywhere.
fn places_of(scene: &Scene, slots: &[u32], numbers: &mut Numbers) -> Vec<[Vec<u32>; 2]> {
    let how = numbers.below(3);
    (0..scene.parents.len())
        .map(|node| {
            let seen: Vec<u32> = (0..scene.prefix).chain(scene.path(node)).map(|row| slots[row]).collect();
            let at = [scene.prefix, seen.len(), numbers.below(seen.len() + 1)][how];
            let (prefix, tail) = seen.split_at(at);
            [prefix.to_vec(), tail.to_vec()]
        })
        .collect()
}

fn borrowed(places: &[[Vec<u32>; 2]]) -> Vec<Places<'_>> {
    places.iter().map(|[prefix, tail]| Places { prefix, tail }).collect()
}

/// Everything that must not matter, for one scene.
fn check_layouts(scene: &Scene, numbers: &mut Numbers, computes: &[&Compute]) {
    let expected = scene.expected();
    let (slots, room) = scene.slots(numbers);
    let cache = scene.cache(&slots, room);
    for compute in computes {
        let places = places_of(scene, &slots, numbers);
        let found = scene.attend(compute, &cache, &scene.queries, &borrowed(&places));
        let what = format!(
            "{}, {} + {}, heads {} / {} of {}, {:?}",
            name(compute),
            scene.prefix,
            scene.parents.len(),
            scene.heads,
            scene.kv_heads,
            scene.head_dim,
            scene.types
        );
        assert_same_bits(&found, &expected, &what);
        // A random choice of the nodes, in random order, some of them more than once.
        let chosen: Vec<usize> = (0..1 + numbers.below(9)).map(|_| numbers.below(scene.parents.len())).collect();
        let places: Vec<_> = chosen.iter().map(|node| places[*node].clone()).collect();
        let queries: Vec<f32> = chosen.iter().flat_map(|node| scene.query(*node).to_vec()).collect();
        let found = scene.attend(compute, &cache, &queries, &borrowed(&places));
        let width = scene.heads * scene.head_dim;
        let expected: Vec<f32> = chosen.iter().flat_map(|n| expected[n * width..][..width].to_vec()).collect();
        assert_same_bits(&found, &expected, &what);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any layout, any split, any threads, any instruction set, any co-runners in any order.
    #[test]
    fn a_node_is_its_path_alone(seed: u64, head_dim in 1..=144usize) {
        let mut numbers = Numbers::new(seed);
        let prefix = numbers.below(60);
        let scene = Scene::tree(&mut numbers, head_dim, prefix);
        check_layouts(&scene, &mut numbers, &COMPUTES.iter().collect::<Vec<_>>());
    }

    /// Closing the ranks of an accepted path: its rows are copied to the slots of the next positions, as the cache
    /// does, over the siblings that lay there.
    #[test]
    fn compacting_a_path_changes_no_bit(seed: u64, head_dim in 1..=80usize) {
        let mut numbers = Numbers::new(seed);
        let prefix = numbers.below(60);
        let scene = Scene::tree(&mut numbers, head_dim, prefix);
        let accepted = numbers.below(scene.parents.len());
        let expected = scene.alone(&COMPUTES[0], accepted);
        let slots: Vec<u32> = numbers.permutation(scene.rows()).iter().map(|slot| *slot as u32).collect();
        let mut cache = scene.cache(&slots, scene.rows());
        let path = scene.path(accepted);
        for (i, row) in path.iter().enumerate() {
            cache.iter_mut().for_each(|side| side.copy(slots[*row], slots[scene.prefix + i]));
        }
        let seen = &slots[..scene.prefix + path.len()];
        for compute in COMPUTES.iter() {
            let places = [Places { prefix: seen, tail: &[] }];
            let found = scene.attend(compute, &cache, scene.query(accepted), &places);
            assert_same_bits(&found, &expected, &name(compute));
        }
    }
}

/// Small scenes of every type, and one over the border of a split: but for the last, few enough numbers for Miri.
#[test]
fn small_scenes_of_every_type() {
    let mut numbers = Numbers::new(18);
    let mut scene = |head_dim, prefix, rows| {
        let mut all = std::iter::repeat_with(|| Scene::chain(&mut numbers, head_dim, prefix, rows));
        all.find(|scene| scene.heads <= 2).expect("endless")
    };
    let computes: Vec<&Compute> = COMPUTES.iter().filter(|compute| compute.pool.threads() <= 2).collect();
    for types in CacheType::ALL.into_iter().zip(CacheType::ALL.into_iter().cycle().skip(1)) {
        check_layouts(&Scene { types: types.into(), ..scene(32, 1, 2) }, &mut Numbers::new(19), &computes);
    }
    if !cfg!(miri) {
        check_layouts(&scene(1, SPLIT, 1), &mut Numbers::new(20), &computes);
    }
}

/// The same over one and two borders of splits, with every width of heads that has a way of its own.
#[test]
fn a_node_is_its_path_alone_in_long_contexts() {
    let mut numbers = Numbers::new(12);
    for (i, head_dim) in [8, 20, 32, 64, 80, 128, 530].into_iter().cycle().take(35).enumerate() {
        let prefix = [SPLIT - 6, 2 * SPLIT - 3, SPLIT - 1, SPLIT, 513 + numbers.below(580)][i % 5];
        let scene = Scene::tree(&mut numbers, head_dim, prefix);
        let mut computes: Vec<&Compute> = COMPUTES.iter().filter(|compute| compute.isa.name() != "portable").collect();
        computes.push(&COMPUTES[1 + i % 3]);
        check_layouts(&scene, &mut numbers, &computes);
    }
}

/// A prompt of many rows, whole and cut: tiles of every height, rows that end within a step.
#[test]
fn a_prompt_may_be_cut_anywhere() {
    let mut numbers = Numbers::new(13);
    for (head_dim, prefix, rows) in [(64, 0, 300), (32, 490, 120), (20, 500, 40), (80, 37, 150), (128, 1000, 70)] {
        let scene = Scene::chain(&mut numbers, head_dim, prefix, rows);
        let (slots, room) = scene.slots(&mut numbers);
        let cache = scene.cache(&slots, room);
        let places: Vec<_> = (0..rows).map(|row| Places { prefix: &slots[..prefix + row + 1], tail: &[] }).collect();
        let fast = COMPUTES.last().expect("the portable path is always there");
        let whole = scene.attend(fast, &cache, &scene.queries, &places);
        let width = scene.heads * head_dim;
        for lengths in [1, 2, 7, 64] {
            for (cut, (places, queries)) in
                places.chunks(lengths).zip(scene.queries.chunks(lengths * width)).enumerate()
            {
                let found = scene.attend(&COMPUTES[COMPUTES.len() - 1 - cut % 4], &cache, queries, places);
                let expected = &whole[cut * lengths * width..][..found.len()];
                assert_same_bits(&found, expected, &format!("head_dim {head_dim}, piece {cut} of {lengths} rows"));
            }
        }
        let last = scene.alone(&COMPUTES[0], rows - 1);
        assert_same_bits(&whole[(rows - 1) * width..], &last, "the last row, portable");
    }
}

/// Against the specification in f64, on the rows as the cache rounded them: weighted means of numbers up to 1, whose
/// weights carry the exponential's 2e-7 and the rounding of scores, which are chains over a head.
#[test]
fn every_type_is_near_the_specification() {
    let mut numbers = Numbers::new(14);
    for head_dim in [1, 8, 9, 20, 31, 32, 64, 80, 127, 128, 600] {
        for positions in [1, 2, 15, 16, 17, 100, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT, 1100] {
            let scene = Scene::chain(&mut numbers, head_dim, positions - 1, 1);
            let expected = scene.specified(0);
            let compute = &COMPUTES[numbers.below(COMPUTES.len())];
            for (found, expected) in scene.alone(compute, 0).iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= 2e-6,
                    "{positions} positions, head_dim {head_dim}, {:?}: {found} for {expected}",
                    scene.types
                );
            }
        }
    }
}

/// A sink far above takes all of the weight and one far below none; at -inf no bit differs from attention without; and
/// one between takes its part, in a row of one split and in one of several.
#[test]
fn a_sink_takes_its_part_of_the_weight() {
    let mut numbers = Numbers::new(21);
    for positions in [1, 40, SPLIT, 2 * SPLIT + 30] {
        let scene = Scene::chain(&mut numbers, 32, positions - 1, 1);
        let scene = Scene { sinks: Vec::new(), soft_cap: None, ..scene };
        let plain = scene.alone(&COMPUTES[0], 0);
        let mut with = |sink: f32| {
            let sunk = Scene { sinks: vec![sink; scene.heads], ..scene.clone() };
            let expected = sunk.specified(0);
            for compute in COMPUTES.iter() {
                let found = sunk.alone(compute, 0);
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 2e-6), "{positions}, sink {sink}");
            }
            sunk.alone(&COMPUTES[numbers.below(COMPUTES.len())], 0)
        };
        assert_same_bits(&with(f32::NEG_INFINITY), &plain, "no weight");
        assert_same_bits(&with(-200.0), &plain, "too little weight to count");
        assert!(with(200.0).iter().all(|x| *x == 0.0), "all of the weight");
        assert!(first_difference(&with(0.5), &plain).is_some(), "its part");
    }
}

/// Several sequences in one call, some of them with a prefix in common.
#[test]
fn strangers_share_a_call() {
    let mut numbers = Numbers::new(15);
    for compute in COMPUTES.iter() {
        let mut scene = Scene::chain(&mut numbers, 64, 0, 90);
        scene.prefix = 0;
        let (slots, room) = scene.slots(&mut numbers);
        let cache = scene.cache(&slots, room);
        // Two texts of rows 0..40 and 40..90, and a third that goes on from the first 20 of the first.
        let third: Vec<u32> = slots[..20].iter().chain(&slots[70..80]).copied().collect();
        let seen = [&slots[..33], &slots[..40], &slots[40..41], &slots[40..90], &third[..], &third[..21]];
        let queries: Vec<f32> = (0..seen.len()).flat_map(|i| scene.query(i).to_vec()).collect();
        let places = seen.map(|prefix| Places { prefix, tail: &[] });
        let found = scene.attend(compute, &cache, &queries, &places);
        for (i, found) in found.chunks_exact(scene.heads * 64).enumerate() {
            let alone = scene.attend(&COMPUTES[0], &cache, scene.query(i), &places[i..=i]);
            assert_same_bits(found, &alone, &name(compute));
        }
    }
}

/// The instrument itself: the same row over the same positions in another order is seen.
#[test]
fn another_order_is_seen() {
    let mut numbers = Numbers::new(16);
    let scene = Scene { window: None, ..Scene::chain(&mut numbers, 64, 600, 1) };
    let slots: Vec<u32> = (0..601).collect();
    let cache = scene.cache(&slots, 601);
    let mut swapped = slots.clone();
    swapped.swap(3, 4);
    let [plain, swapped] = [&slots, &swapped]
        .map(|slots| scene.attend(&COMPUTES[0], &cache, scene.query(0), &[Places { prefix: slots, tail: &[] }]));
    assert!(first_difference(&plain, &swapped).is_some());
}

/// The figures in the opening paragraph of `attention.rs`, of one layer:
/// `cargo test --release -p foretoken-kernels --test kernels cost_of_attention -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_attention() {
    let compute = &COMPUTES[COMPUTES.len() - 3];
    println!("{}; nanoseconds times threads a query head and position, GB/s of the cache", name(compute));
    for (kv_heads, group) in [(12, 1), (4, 8)] {
        for kind in [CacheType::F32, CacheType::F16, CacheType::Q8_0] {
            for (prefix, rows) in
                [(1000, 1), (1000, 2), (1000, 4), (1000, 8), (1000, 16), (4000, 1), (4000, 8), (0, 512)]
            {
                // A cache of several layers, so that each call finds its own in memory and not nearby.
                let layers = 1 + 200_000_000 / (8 * kv_heads * 64 * (prefix + rows));
                let slots: Vec<u32> = (0..(prefix + rows) as u32).collect();
                let mut scene = Scene::chain(&mut Numbers::new(17), 64, prefix, rows);
                (scene.kv_heads, scene.heads, scene.types) = (kv_heads, kv_heads * group, [kind; 2]);
                (scene.soft_cap, scene.slopes, scene.sinks, scene.window) = (None, vec![], vec![], None);
                scene.keys = Numbers::new(18).units((prefix + rows) * scene.width());
                scene.values = scene.keys.clone();
                scene.queries = Numbers::new(19).units(rows * scene.heads * 64);
                let caches: Vec<[Side; 2]> = (0..layers).map(|_| scene.cache(&slots, slots.len())).collect();
                let places: Vec<_> =
                    (0..rows).map(|row| Places { prefix: &slots[..prefix + row + 1], tail: &[] }).collect();
                let (mut scratch, mut out) = (Scratch::default(), vec![0.0; scene.queries.len()]);
                let mut pass = || {
                    let start = std::time::Instant::now();
                    for cache in &caches {
                        let arguments = Arguments::new(scene.heads, 0.25, &cache[0], &cache[1]);
                        attention(compute, &arguments, &scene.queries, &places, &mut scratch, &mut out);
                    }
                    start.elapsed().as_secs_f64() / layers as f64
                };
                let mut times: Vec<f64> = (0..12).map(|_| pass()).collect();
                times.sort_by(f64::total_cmp);
                let seen: usize = places.iter().map(|place| place.prefix.len()).sum();
                let bytes = 2 * kind.bytes(64) * kv_heads * slots.len();
                println!(
                    "{kv_heads:2} x {group} heads, {}, {rows:3} rows behind {prefix:4}: \
                     {:6.3} ms, {:5.2} ns, {:5.1} GB/s",
                    kind.name(),
                    times[0] * 1e3,
                    times[0] * 1e9 * compute.pool.threads() as f64 / (seen * scene.heads) as f64,
                    bytes as f64 / times[0] / 1e9,
                );
            }
        }
    }
}
