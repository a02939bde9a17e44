//! The experts of a layer: which of them a row goes through, and their products.
//!
//! The idea: rows are gathered by the experts that they chose, so each expert's weights are read once a pass, however
//! many rows chose it; and each row adds up what its experts say in the order of its own choices, the likeliest first.
//! So the bits of a row depend on nothing but the row: not on who else is in the pass, nor on threads.
//!
//! The router is computed in floats and never brought to another type of weights: a score that is rounded is another
//! choice. What is read: the weights of distinct experts, which the layer reports. Left out: how a row chooses
//! (`router.rs`), and experts that are not in memory.

use foretoken_kernels::matmul::{Group, Product};

use crate::block::{Block, InnerBuffers, room};
use crate::faults;
use crate::linear::Linear;
use crate::network::{Dense, Experts, Inner};
use crate::router::Chooser;
use crate::spec::{self, Activation};

/// Buffers of the experts of a layer, kept between passes.
#[derive(Default)]
pub(crate) struct ExpertBuffers {
    /// `[rows, experts]`.
    scores: Vec<f32>,
    chosen: Chosen,
    /// The rows that each expert gets, one expert after another, `[rows * chosen, width]`.
    gathered: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// What the experts say of these rows.
    said: Vec<f32>,
    shared: InnerBuffers,
    shared_gate: Vec<f32>,
    shared_said: Vec<f32>,
    /// What the layer says of its rows, `[rows, width]`.
    out: Vec<f32>,
    /// Experts that this pass has read so far, of all layers, and the bytes of their weights.
    pub(crate) read: [usize; 2],
}

/// Who goes where.
#[derive(Default)]
struct Chosen {
    /// Experts of each row, the likeliest first, `[rows, chosen]`, and their weights.
    experts: Vec<u32>,
    weights: Vec<f32>,
    /// Where each of these is among the gathered rows.
    places: Vec<usize>,
    /// Which row each gathered one is.
    rows: Vec<usize>,
    /// Of each expert its first gathered row, and of them all the end.
    starts: Vec<usize>,
    /// Of each expert where its next row goes, while they are counted out.
    next: Vec<usize>,
    chooser: Chooser,
}

impl Chosen {
    /// By what the router says of rows, `[rows, experts]`. `corrections`: those of the layer, or nothing.
    fn fill(&mut self, said: &[f32], corrections: &[f32], layer: &spec::Experts) {
        let spec::Experts { count, chosen, .. } = *layer;
        let Self { experts: all, weights, places, rows, starts, next, chooser } = self;
        all.clear();
        weights.clear();
        for said in said.chunks_exact(count) {
            chooser.choose(layer, said, corrections, (all, weights));
        }
        faults::misplace(chosen, all, weights);
        starts.clear();
        starts.resize(count + 1, 0);
        all.iter().for_each(|expert| starts[*expert as usize + 1] += 1);
        (0..count).for_each(|expert| starts[expert + 1] += starts[expert]);
        rows.clear();
        rows.resize(all.len(), 0);
        places.clear();
        next.clone_from(starts);
        for (i, expert) in all.iter().enumerate() {
            let place = &mut next[*expert as usize];
            rows[*place] = i / chosen;
            places.push(*place);
            *place += 1;
        }
    }

    /// Multiplies the weights of each expert by a number of its own; none: they stay as they are.
    fn scale(&mut self, scales: &[f32]) {
        if !scales.is_empty() {
            let of = |expert: &u32| scales[*expert as usize];
            self.weights.iter_mut().zip(&self.experts).for_each(|(weight, expert)| *weight *= of(expert));
        }
    }

    /// The experts that some row chose, with how many did.
    fn groups(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let counts = self.starts.windows(2).map(|two| two[1] - two[0]);
        counts.enumerate().filter(|(_, rows)| *rows > 0)
    }
}

/// The first `len` of what is left.
fn take<'a>(left: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(left).split_at_mut(len);
    *left = rest;
    first
}

impl Block<'_> {
    /// What a layer's experts say of rows `read` `[rows, width]`: as many. The router reads `scored`, mostly the same.
    pub(crate) fn ask_experts<'b>(
        &self,
        (layer, experts): (&spec::Experts, &Experts<Linear>),
        [scored, read]: [&[f32]; 2],
        buffers: &'b mut ExpertBuffers,
    ) -> &'b [f32] {
        let (rows, width) = (self.rows(), self.spec.width);
        let ExpertBuffers { scores, chosen, gathered, gate, up, said, out, .. } = buffers;
        let scores = room(scores, rows * layer.count);
        self.products.one(scored, rows, width, experts.router.product(scores, false));
        chosen.fill(scores, &experts.corrections, layer);
        chosen.scale(&experts.scales);
        let all = chosen.rows.len();
        let gathered = room(gathered, all * width);
        for (row, out) in chosen.rows.iter().zip(gathered.chunks_exact_mut(width)) {
            out.copy_from_slice(&read[row * width..][..width]);
        }
        let ffn_elements = all * layer.ffn_width;
        let (gated, raised) = (room(gate, ffn_elements), room(up, ffn_elements));
        let activation = self.raise(experts, chosen, (gathered, layer.ffn_width), (gated, raised));
        self.gate(activation, gated, raised);
        let said = room(said, all * width);
        let mut left = &mut *said;
        let lower = |(expert, rows): (usize, usize)| {
            (rows, [experts.all[expert].down.product(take(&mut left, rows * width), false)])
        };
        self.grouped(gated, layer.ffn_width, &mut chosen.groups().map(lower).collect::<Vec<_>>());
        let out = room(out, rows * width);
        self.products.compute.pool.each_chunk(out, width, &|row, out| {
            out.fill(0.0);
            for choice in row * layer.chosen..(row + 1) * layer.chosen {
                let (weight, said) = (chosen.weights[choice], &said[chosen.places[choice] * width..][..width]);
                out.iter_mut().zip(said).for_each(|(out, said)| *out += weight * said);
            }
        });
        for (expert, _) in chosen.groups() {
            let bytes: usize = experts.all[expert].matrices().map(|matrix| matrix.packed().bytes).sum();
            buffers.read = [buffers.read[0] + 1, buffers.read[1] + bytes];
        }
        if let Some((dense, gate)) = &experts.shared {
            self.add_shared((dense, gate.as_ref()), read, buffers);
        }
        &buffers.out[..rows * width]
    }

    /// Gates and what they multiply of the gathered rows, and what is applied to the gates.
    fn raise(
        &self,
        experts: &Experts<Linear>,
        chosen: &Chosen,
        (gathered, ffn_width): (&[f32], usize),
        (mut gated, mut raised): (&mut [f32], &mut [f32]),
    ) -> Activation {
        let mut of_all = Activation::Silu;
        let mut groups = Vec::new();
        for (expert, rows) in chosen.groups() {
            let Inner::Gated { activation, gate, up } = &experts.all[expert].inner else {
                unreachable!("experts without gates")
            };
            of_all = *activation;
            let (gated, raised) = (take(&mut gated, rows * ffn_width), take(&mut raised, rows * ffn_width));
            groups.push((rows, [gate.product(gated, false), up.product(raised, false)]));
        }
        self.grouped(gathered, self.spec.width, &mut groups);
        of_all
    }

    /// Products of gathered rows `x`, so many of each group, one after another.
    fn grouped<const N: usize>(&self, x: &[f32], inputs: usize, groups: &mut [(usize, [Product<'_>; N])]) {
        let (mut left, mut all) = (x, Vec::with_capacity(groups.len()));
        for (rows, products) in groups {
            let (x, rest) = left.split_at(*rows * inputs);
            left = rest;
            all.push(Group { x, rows: *rows, products });
        }
        self.products.grouped(inputs, &mut all);
    }

    /// Adds what the expert says that all rows go through.
    fn add_shared(&self, (dense, gate): (&Dense<Linear>, Option<&Linear>), read: &[f32], buffers: &mut ExpertBuffers) {
        let (rows, width) = (self.rows(), self.spec.width);
        let ExpertBuffers { shared, shared_gate, shared_said, out, .. } = buffers;
        let inner = self.feed(dense, read, shared);
        let said = room(shared_said, rows * width);
        self.products.one(inner, rows, dense.down.inputs(), dense.down.product(said, false));
        let shares = room(shared_gate, rows);
        shares.fill(1.0);
        if let Some(gate) = gate {
            self.products.one(read, rows, width, gate.product(shares, false));
            shares.iter_mut().for_each(|share| *share = 1.0 / (1.0 + (-*share).exp()));
        }
        let rows = out.chunks_exact_mut(width).zip(said.chunks_exact(width));
        for ((out, said), share) in rows.zip(shares) {
            out.iter_mut().zip(said).for_each(|(out, said)| *out += *share * said);
        }
    }
}
