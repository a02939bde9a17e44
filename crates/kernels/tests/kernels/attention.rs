//! Attention sees logical positions and nothing else: not pages, not siblings, not where an ancestor is stored.
//!
//! A random tree on a random prefix is laid out in a cache of shuffled slots, whose unused ones hold NaN. Every node
//! must come out as it does alone, with its path stored as a plain sequence.

use foretoken_kernels::Compute;
use foretoken_kernels::attention::{Arguments, Places, Scratch, attention};
use foretoken_testkit::rows::Numbers;
use proptest::prelude::*;

use crate::{COMPUTES, assert_same_bits, name};

/// Keys, values and queries of a prefix and a tree behind it, by logical identity rather than by slot.
#[derive(Debug)]
struct Scene {
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
    fn random(numbers: &mut Numbers, head_dim: usize) -> Self {
        let (kv_heads, group) = (1 + numbers.below(3), 1 + numbers.below(3));
        let (prefix, nodes) = (numbers.below(60), 1 + numbers.below(12));
        let parents = (0..nodes).map(|i| numbers.below(i + 1).checked_sub(1)).collect();
        let width = kv_heads * head_dim;
        Self {
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

    fn width(&self) -> usize {
        self.kv_heads * self.head_dim
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

    /// A cache in which row i lies at `slots[i]`, and NaN everywhere else.
    fn cache(&self, rows: &[f32], slots: &[u32], room: usize) -> Vec<f32> {
        let mut cache = vec![f32::NAN; room * self.width()];
        for (row, slot) in slots.iter().enumerate() {
            cache[*slot as usize * self.width()..][..self.width()]
                .copy_from_slice(&rows[row * self.width()..][..self.width()]);
        }
        cache
    }

    fn attend(&self, compute: &Compute, caches: [&[f32]; 2], queries: &[f32], places: &[Places<'_>]) -> Vec<f32> {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        let arguments = Arguments { heads, kv_heads, head_dim, scale: 0.25, keys: caches[0], values: caches[1] };
        let mut out = vec![f32::NAN; queries.len()];
        attention(compute, &arguments, queries, places, &mut Scratch::default(), &mut out);
        out
    }

    /// A node with its path stored as a plain sequence in a cache of its own.
    fn alone(&self, compute: &Compute, node: usize) -> Vec<f32> {
        let rows: Vec<usize> = (0..self.prefix).chain(self.path(node)).collect();
        let slots: Vec<u32> = (0..rows.len() as u32).collect();
        let pick = |of: &[f32]| -> Vec<f32> {
            rows.iter().flat_map(|row| of[row * self.width()..][..self.width()].iter().copied()).collect()
        };
        let (keys, values) = (pick(&self.keys), pick(&self.values));
        self.attend(compute, [&keys, &values], self.query(node), &[Places { prefix: &slots, tail: &[] }])
    }

    /// All nodes alone, on the plainest path.
    fn expected(&self) -> Vec<f32> {
        (0..self.parents.len()).flat_map(|node| self.alone(&COMPUTES[0], node)).collect()
    }
}

/// Prefix and tail slots of every node: the split between them lies anywhere, as the engine may choose.
fn places_of(scene: &Scene, slots: &[u32], numbers: &mut Numbers) -> Vec<[Vec<u32>; 2]> {
    (0..scene.parents.len())
        .map(|node| {
            let seen: Vec<u32> = (0..scene.prefix).chain(scene.path(node)).map(|row| slots[row]).collect();
            let (prefix, tail) = seen.split_at(numbers.below(seen.len() + 1));
            [prefix.to_vec(), tail.to_vec()]
        })
        .collect()
}

fn borrowed(places: &[[Vec<u32>; 2]]) -> Vec<Places<'_>> {
    places.iter().map(|[prefix, tail]| Places { prefix, tail }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any layout, any split, any threads, any instruction set, any co-runners in any order.
    #[test]
    fn a_node_is_its_path_alone(seed: u64, head_dim in 1..=144usize) {
        let mut numbers = Numbers::new(seed);
        let scene = Scene::random(&mut numbers, head_dim);
        let (nodes, rows) = (scene.parents.len(), scene.prefix + scene.parents.len());
        let expected = scene.expected();
        let room = rows + numbers.below(30);
        let slots: Vec<u32> = numbers.permutation(room)[..rows].iter().map(|slot| *slot as u32).collect();
        let (keys, values) = (scene.cache(&scene.keys, &slots, room), scene.cache(&scene.values, &slots, room));
        for compute in COMPUTES.iter() {
            let places = places_of(&scene, &slots, &mut numbers);
            let found = scene.attend(compute, [&keys, &values], &scene.queries, &borrowed(&places));
            assert_same_bits(&found, &expected, &name(compute));
            // A random choice of the nodes, in random order, some of them more than once.
            let chosen: Vec<usize> = (0..1 + numbers.below(9)).map(|_| numbers.below(nodes)).collect();
            let places: Vec<_> = chosen.iter().map(|node| places[*node].clone()).collect();
            let queries: Vec<f32> = chosen.iter().flat_map(|node| scene.query(*node).to_vec()).collect();
            let found = scene.attend(compute, [&keys, &values], &queries, &borrowed(&places));
            let width = scene.heads * head_dim;
            let expected: Vec<f32> = chosen.iter().flat_map(|n| expected[n * width..][..width].to_vec()).collect();
            assert_same_bits(&found, &expected, &name(compute));
        }
    }

    /// Closing the ranks of an accepted path: its rows are copied to the slots of the next positions, as the cache
    /// does, over the siblings that lay there.
    #[test]
    fn compacting_a_path_changes_no_bit(seed: u64, head_dim in 1..=80usize) {
        let mut numbers = Numbers::new(seed);
        let scene = Scene::random(&mut numbers, head_dim);
        let (nodes, rows) = (scene.parents.len(), scene.prefix + scene.parents.len());
        let accepted = numbers.below(nodes);
        let expected = scene.alone(&COMPUTES[0], accepted);
        let slots: Vec<u32> = numbers.permutation(rows).iter().map(|slot| *slot as u32).collect();
        let mut caches = [scene.cache(&scene.keys, &slots, rows), scene.cache(&scene.values, &slots, rows)];
        let path = scene.path(accepted);
        for (i, row) in path.iter().enumerate() {
            let (from, to) = (slots[*row] as usize, slots[scene.prefix + i] as usize);
            for cache in &mut caches {
                cache.copy_within(from * scene.width()..(from + 1) * scene.width(), to * scene.width());
            }
        }
        let seen = &slots[..scene.prefix + path.len()];
        for compute in COMPUTES.iter() {
            let places = [Places { prefix: seen, tail: &[] }];
            let found = scene.attend(compute, [&caches[0], &caches[1]], scene.query(accepted), &places);
            assert_same_bits(&found, &expected, &name(compute));
        }
    }
}

/// A long context, for which the threads are surely woken and every row has its own length.
#[test]
fn rows_of_a_long_context() {
    let mut numbers = Numbers::new(11);
    let mut scene = Scene::random(&mut numbers, 64);
    (scene.prefix, scene.parents) = (700, (0..9usize).map(|i| i.checked_sub(1)).collect());
    scene.keys = numbers.units(709 * scene.width());
    scene.values = numbers.units(709 * scene.width());
    scene.queries = numbers.units(9 * scene.heads * 64);
    let slots: Vec<u32> = numbers.permutation(709).iter().map(|slot| *slot as u32).collect();
    let (keys, values) = (scene.cache(&scene.keys, &slots, 709), scene.cache(&scene.values, &slots, 709));
    let expected = scene.expected();
    for compute in COMPUTES.iter() {
        let places = places_of(&scene, &slots, &mut numbers);
        let found = scene.attend(compute, [&keys, &values], &scene.queries, &borrowed(&places));
        assert_same_bits(&found, &expected, &name(compute));
    }
}
