//! Tests that attention depends on logical positions alone: not on pages, siblings or the slot of an ancestor.
//!
//! A random tree on a random prefix is stored in a cache of shuffled slots, whose unused slots hold NaN. The result of
//! every node must have the same bits as alone, with its path stored as a plain sequence, and be near what the naive
//! specification computes from the rows as the cache rounded them.

mod cost;

use foretoken_kernels::attention::{Arguments, CacheTensor, CacheType, RelativeBias, RowSlots, Scratch, attention};
use foretoken_kernels::{Compute, naive};
use foretoken_testkit::rows::{Numbers, first_difference};
use proptest::prelude::*;

use crate::{COMPUTES, assert_same_bits, name};

/// Positions of a split. Cases lie around its borders; no test depends on this number being right.
const SPLIT: usize = 512;

/// Keys, values and queries of a prefix and a tree after it, by logical identity rather than by slot.
#[derive(Clone, Debug)]
struct Case {
    types: [CacheType; 2],
    soft_cap: Option<f32>,
    /// One slope for each head, or none.
    slopes: Vec<f32>,
    /// Biases `[heads, columns]` by relative position, or none, and the column of a node's own position.
    biases: (Vec<f32>, usize),
    /// How far the nodes' positions lie behind the last position that they see, or before it.
    shift: usize,
    /// One sink for each head, or none.
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

impl Case {
    fn random(numbers: &mut Numbers, head_dim: usize, prefix: usize, parents: Vec<Option<usize>>) -> Self {
        let (kv_heads, group) = (1 + numbers.below(3), 1 + numbers.below(8));
        let mut kind = || {
            let kind = CacheType::ALL[numbers.below(4)];
            if head_dim.is_multiple_of(kind.block()) { kind } else { CacheType::F16 }
        };
        let types = [kind(), kind()];
        let (width, nodes) = (kv_heads * head_dim, parents.len());
        let soft_cap = (numbers.below(4) == 0).then(|| 0.2 + numbers.unit().abs());
        let has_slopes = numbers.below(4) == 0;
        let (columns, has_biases) = (1 + numbers.below(200), numbers.below(3) == 0);
        let before = [0, columns - 1, columns / 2][numbers.below(3)];
        let has_sinks = numbers.below(3) == 0;
        // The windows are around a row's own position, the edge of a tile and that of a split.
        let window = [1, 2, 1 + numbers.below(40), 500 + numbers.below(30), 1 + numbers.below(1100)][numbers.below(5)];
        Self {
            types,
            soft_cap,
            slopes: (0..if has_slopes { kv_heads * group } else { 0 }).map(|_| numbers.unit().abs() / 20.0).collect(),
            biases: (if has_biases { numbers.units(kv_heads * group * columns) } else { vec![] }, before),
            shift: numbers.below(2) * numbers.below(40),
            // The sinks are between values below all scores and values above them.
            sinks: if has_sinks { (0..kv_heads * group).map(|_| 4.0 * numbers.unit()).collect() } else { vec![] },
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

    /// The position of a query that sees `len` positions, as the biases count it.
    fn position(&self, len: usize) -> usize {
        (len - 1).saturating_sub(self.shift)
    }

    /// The biases of a head for the positions that a query sees.
    fn biases_of(&self, head: usize, len: usize) -> Vec<f32> {
        let (table, before) = &self.biases;
        let row = &table[head * (table.len() / self.heads)..][..table.len() / self.heads];
        let at = |key: usize| (key + before).saturating_sub(self.position(len)).min(row.len() - 1);
        if row.is_empty() { Vec::new() } else { (0..len).map(|key| row[at(key)]).collect() }
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
    fn cache(&self, slots: &[u32], room: usize) -> [CacheTensor; 2] {
        let Self { types, kv_heads, head_dim, .. } = *self;
        let make = [CacheTensor::keys, CacheTensor::values];
        [0, 1].map(|which| {
            let mut tensor = make[which](types[which], room, kv_heads, head_dim).expect("memory");
            (0..room as u32).for_each(|slot| tensor.store(slot, &vec![f32::NAN; self.width()]));
            let rows = [&self.keys, &self.values][which].chunks_exact(self.width());
            rows.zip(slots).for_each(|(row, slot)| tensor.store(*slot, row));
            tensor
        })
    }

    fn attend(
        &self,
        compute: &Compute,
        cache: &[CacheTensor; 2],
        queries: &[f32],
        row_slots: &[RowSlots<'_>],
    ) -> Vec<f32> {
        let position = |slots: &RowSlots<'_>| self.position(slots.prefix.len() + slots.tail.len()) as u32;
        let positions: Vec<u32> = row_slots.iter().map(position).collect();
        let (table, before) = (&self.biases.0[..], self.biases.1);
        let arguments = Arguments {
            soft_cap: self.soft_cap,
            slopes: &self.slopes,
            bias: (!table.is_empty()).then_some(RelativeBias { table, before, positions: &positions }),
            sinks: &self.sinks,
            window: self.window,
            ..Arguments::new(self.heads, 0.25, &cache[0], &cache[1])
        };
        let mut out = vec![f32::NAN; queries.len()];
        attention(compute, &arguments, queries, row_slots, &mut Scratch::default(), &mut out);
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
        for (tensor, all) in cache.iter_mut().zip([&self.keys, &self.values]) {
            let last = rows[room - 1];
            tensor.store(room as u32 - 1, &all[last * self.width()..][..self.width()]);
        }
        let slots: Vec<u32> = (0..room as u32).collect();
        self.attend(compute, &cache, self.query(node), &[RowSlots { prefix: &slots, tail: &[] }])
    }

    /// The results of all nodes, each computed alone on the portable instruction set.
    fn expected(&self) -> Vec<f32> {
        (0..self.parents.len()).flat_map(|node| self.alone(&COMPUTES[0], node)).collect()
    }

    /// The result of the specification for one node, from the rows as they are stored.
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
            let (soft_cap, window, bias) = (self.soft_cap, self.window, self.biases_of(head, keys.len()));
            let options = naive::ScoreOptions { scale: 0.25, soft_cap, slope, bias, window, sink };
            naive::attention(query, &keys, &values, &options)
        };
        self.query(node).chunks_exact(self.head_dim).enumerate().flat_map(of_head).collect()
    }

    /// Random distinct slots for all rows, and the number of slots. Sometimes they are in order from a multiple of
    /// sixteen on, as an engine's pages of 32 give them; sometimes in pages of another length.
    fn slots(&self, numbers: &mut Numbers) -> (Vec<u32>, usize) {
        let page_len = [1, 3, 8, 16, 24, 32][numbers.below(6)];
        let pages = self.rows().div_ceil(page_len) + numbers.below(3);
        let order = if numbers.below(2) == 0 { (0..pages).collect() } else { numbers.permutation(pages) };
        let slot = |row: usize| (order[row / page_len] * page_len + row % page_len) as u32;
        ((0..self.rows()).map(slot).collect(), pages * page_len)
    }
}

/// The prefix and tail slots of every node. They are cut as the decoder does it, into the committed rows and the
/// ancestors, or all slots of a chain are in the prefix, or the cut is anywhere.
fn row_slots_of(case: &Case, slots: &[u32], numbers: &mut Numbers) -> Vec<[Vec<u32>; 2]> {
    let way = numbers.below(3);
    (0..case.parents.len())
        .map(|node| {
            let seen: Vec<u32> = (0..case.prefix).chain(case.path(node)).map(|row| slots[row]).collect();
            let at = [case.prefix, seen.len(), numbers.below(seen.len() + 1)][way];
            let (prefix, tail) = seen.split_at(at);
            [prefix.to_vec(), tail.to_vec()]
        })
        .collect()
}

fn borrowed(row_slots: &[[Vec<u32>; 2]]) -> Vec<RowSlots<'_>> {
    row_slots.iter().map(|[prefix, tail]| RowSlots { prefix, tail }).collect()
}

/// Checks for one case that layouts, threads and other rows change no bit.
fn check_layouts(case: &Case, numbers: &mut Numbers, computes: &[&Compute]) {
    let expected = case.expected();
    let (slots, room) = case.slots(numbers);
    let cache = case.cache(&slots, room);
    for compute in computes {
        let row_slots = row_slots_of(case, &slots, numbers);
        let found = case.attend(compute, &cache, &case.queries, &borrowed(&row_slots));
        let what = format!(
            "{}, {} + {}, heads {} / {} of {}, {:?}",
            name(compute),
            case.prefix,
            case.parents.len(),
            case.heads,
            case.kv_heads,
            case.head_dim,
            case.types
        );
        assert_same_bits(&found, &expected, &what);
        // The nodes are chosen at random, in random order, some of them more than once.
        let chosen: Vec<usize> = (0..1 + numbers.below(9)).map(|_| numbers.below(case.parents.len())).collect();
        let row_slots: Vec<_> = chosen.iter().map(|node| row_slots[*node].clone()).collect();
        let queries: Vec<f32> = chosen.iter().flat_map(|node| case.query(*node).to_vec()).collect();
        let found = case.attend(compute, &cache, &queries, &borrowed(&row_slots));
        let width = case.heads * case.head_dim;
        let expected: Vec<f32> = chosen.iter().flat_map(|n| expected[n * width..][..width].to_vec()).collect();
        assert_same_bits(&found, &expected, &what);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Tries any layout, split, number of threads and instruction set, and any other rows in any order.
    #[test]
    fn a_node_equals_its_path_alone(seed: u64, head_dim in 1..=144usize) {
        let mut numbers = Numbers::new(seed);
        let prefix = numbers.below(60);
        let case = Case::tree(&mut numbers, head_dim, prefix);
        check_layouts(&case, &mut numbers, &COMPUTES.iter().collect::<Vec<_>>());
    }

    /// Compacts an accepted path: its rows are copied to the slots of the next positions, as the cache does, over the
    /// siblings that lay there.
    #[test]
    fn compacting_a_path_changes_no_bit(seed: u64, head_dim in 1..=80usize) {
        let mut numbers = Numbers::new(seed);
        let prefix = numbers.below(60);
        let case = Case::tree(&mut numbers, head_dim, prefix);
        let accepted = numbers.below(case.parents.len());
        let expected = case.alone(&COMPUTES[0], accepted);
        let slots: Vec<u32> = numbers.permutation(case.rows()).iter().map(|slot| *slot as u32).collect();
        let mut cache = case.cache(&slots, case.rows());
        let path = case.path(accepted);
        for (i, row) in path.iter().enumerate() {
            cache.iter_mut().for_each(|tensor| tensor.copy(slots[*row], slots[case.prefix + i]));
        }
        let seen = &slots[..case.prefix + path.len()];
        for compute in COMPUTES.iter() {
            let row_slots = [RowSlots { prefix: seen, tail: &[] }];
            let found = case.attend(compute, &cache, case.query(accepted), &row_slots);
            assert_same_bits(&found, &expected, &name(compute));
        }
    }
}

/// Small cases of every type, and one over the border of a split. All but the last are small enough for Miri.
#[test]
fn small_cases_of_every_type() {
    let mut numbers = Numbers::new(18);
    let mut case = |head_dim, prefix, rows| {
        let mut all = std::iter::repeat_with(|| Case::chain(&mut numbers, head_dim, prefix, rows));
        all.find(|case| case.heads <= 2).expect("endless")
    };
    let computes: Vec<&Compute> = COMPUTES.iter().filter(|compute| compute.pool.threads() <= 2).collect();
    for types in CacheType::ALL.into_iter().zip(CacheType::ALL.into_iter().cycle().skip(1)) {
        check_layouts(&Case { types: types.into(), ..case(32, 1, 2) }, &mut Numbers::new(19), &computes);
    }
    if !cfg!(miri) {
        check_layouts(&case(1, SPLIT, 1), &mut Numbers::new(20), &computes);
    }
}

/// `a_node_equals_its_path_alone` over one and two borders of splits, with every head dimension that has a code path of
/// its own.
#[test]
fn a_node_equals_its_path_alone_in_long_contexts() {
    let mut numbers = Numbers::new(12);
    for (i, head_dim) in [8, 20, 32, 64, 80, 128, 530].into_iter().cycle().take(35).enumerate() {
        let prefix = [SPLIT - 6, 2 * SPLIT - 3, SPLIT - 1, SPLIT, 513 + numbers.below(580)][i % 5];
        let case = Case::tree(&mut numbers, head_dim, prefix);
        let mut computes: Vec<&Compute> = COMPUTES.iter().filter(|compute| compute.isa.name() != "portable").collect();
        computes.push(&COMPUTES[1 + i % 3]);
        check_layouts(&case, &mut numbers, &computes);
    }
}

/// Computes a prompt of many rows, whole and in chunks, with tiles of every height and rows that end within a step.
#[test]
fn a_prompt_may_be_cut_into_any_chunks() {
    let mut numbers = Numbers::new(13);
    for (head_dim, prefix, rows) in [(64, 0, 300), (32, 490, 120), (20, 500, 40), (80, 37, 150), (128, 1000, 70)] {
        let case = Case::chain(&mut numbers, head_dim, prefix, rows);
        let (slots, room) = case.slots(&mut numbers);
        let cache = case.cache(&slots, room);
        let row_slots: Vec<_> =
            (0..rows).map(|row| RowSlots { prefix: &slots[..prefix + row + 1], tail: &[] }).collect();
        let fast = COMPUTES.last().expect("the portable path is always there");
        let whole = case.attend(fast, &cache, &case.queries, &row_slots);
        let width = case.heads * head_dim;
        for lengths in [1, 2, 7, 64] {
            for (cut, (row_slots, queries)) in
                row_slots.chunks(lengths).zip(case.queries.chunks(lengths * width)).enumerate()
            {
                let found = case.attend(&COMPUTES[COMPUTES.len() - 1 - cut % 4], &cache, queries, row_slots);
                let expected = &whole[cut * lengths * width..][..found.len()];
                assert_same_bits(&found, expected, &format!("head_dim {head_dim}, chunk {cut} of {lengths} rows"));
            }
        }
        let last = case.alone(&COMPUTES[0], rows - 1);
        assert_same_bits(&whole[(rows - 1) * width..], &last, "the last row, portable");
    }
}

/// Compares with the specification in f64, on the rows as the cache rounded them. Results are weighted means of numbers
/// up to 1, whose weights have the exponential's error of 2e-7 and the rounding of scores, which are chains over a
/// head.
#[test]
fn every_type_is_near_the_specification() {
    let mut numbers = Numbers::new(14);
    for head_dim in [1, 8, 9, 20, 31, 32, 64, 80, 127, 128, 600] {
        for positions in [1, 2, 15, 16, 17, 100, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT, 1100] {
            let case = Case::chain(&mut numbers, head_dim, positions - 1, 1);
            let expected = case.specified(0);
            let compute = &COMPUTES[numbers.below(COMPUTES.len())];
            for (found, expected) in case.alone(compute, 0).iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= 2e-6,
                    "{positions} positions, head_dim {head_dim}, {:?}: {found} for {expected}",
                    case.types
                );
            }
        }
    }
}

/// A sink far above the scores takes all of the weight and one far below takes none; with -inf no bit differs from
/// attention without sinks. A sink between takes its part, in a row of one split and in a row of several.
#[test]
fn a_sink_takes_its_part_of_the_weight() {
    let mut numbers = Numbers::new(21);
    for positions in [1, 40, SPLIT, 2 * SPLIT + 30] {
        let case = Case::chain(&mut numbers, 32, positions - 1, 1);
        let case = Case { sinks: Vec::new(), soft_cap: None, ..case };
        let plain = case.alone(&COMPUTES[0], 0);
        let mut with = |sink: f32| {
            let with_sinks = Case { sinks: vec![sink; case.heads], ..case.clone() };
            let expected = with_sinks.specified(0);
            for compute in COMPUTES.iter() {
                let found = with_sinks.alone(compute, 0);
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 2e-6), "{positions}, sink {sink}");
            }
            with_sinks.alone(&COMPUTES[numbers.below(COMPUTES.len())], 0)
        };
        assert_same_bits(&with(f32::NEG_INFINITY), &plain, "no weight");
        assert_same_bits(&with(-200.0), &plain, "too little weight to count");
        assert!(with(200.0).iter().all(|x| *x == 0.0), "all of the weight");
        assert!(first_difference(&with(0.5), &plain).is_some(), "its part");
    }
}

/// Several sequences in one call, some of them with a prefix in common.
#[test]
fn several_sequences_share_a_call() {
    let mut numbers = Numbers::new(15);
    for compute in COMPUTES.iter() {
        let mut case = Case::chain(&mut numbers, 64, 0, 90);
        case.prefix = 0;
        let (slots, room) = case.slots(&mut numbers);
        let cache = case.cache(&slots, room);
        // Two sequences of rows 0..40 and 40..90, and a third that continues the first 20 rows of the first.
        let third: Vec<u32> = slots[..20].iter().chain(&slots[70..80]).copied().collect();
        let seen = [&slots[..33], &slots[..40], &slots[40..41], &slots[40..90], &third[..], &third[..21]];
        let queries: Vec<f32> = (0..seen.len()).flat_map(|i| case.query(i).to_vec()).collect();
        let row_slots = seen.map(|prefix| RowSlots { prefix, tail: &[] });
        let found = case.attend(compute, &cache, &queries, &row_slots);
        for (i, found) in found.chunks_exact(case.heads * 64).enumerate() {
            let alone = case.attend(&COMPUTES[0], &cache, case.query(i), &row_slots[i..=i]);
            assert_same_bits(found, &alone, &name(compute));
        }
    }
}

/// Tests the comparison itself: it must detect the same positions in another order.
#[test]
fn another_order_changes_bits() {
    let mut numbers = Numbers::new(16);
    let case = Case { window: None, ..Case::chain(&mut numbers, 64, 600, 1) };
    let slots: Vec<u32> = (0..601).collect();
    let cache = case.cache(&slots, 601);
    let mut swapped = slots.clone();
    swapped.swap(3, 4);
    let [plain, swapped] = [&slots, &swapped]
        .map(|slots| case.attend(&COMPUTES[0], &cache, case.query(0), &[RowSlots { prefix: slots, tail: &[] }]));
    assert!(first_difference(&plain, &swapped).is_some());
}
