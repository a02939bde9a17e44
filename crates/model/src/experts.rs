//! The experts of a layer: which of them a row goes through, and their products.
//!
//! The idea: rows are gathered by the experts that they chose, so each expert's weights are read once a pass, however
//! many rows chose it; and each row adds up what its experts say in the order of its own choices, the likeliest first.
//! So the bits of a row depend on nothing but the row: not on who else is in the pass, nor on threads.
//!
//! The router is computed in floats and never brought to another type of weights: a score that is rounded is another
//! choice. What is read: the weights of distinct experts, which the layer reports. Left out: how a row chooses
//! (`router.rs`), and where experts lie that are not all in memory (`expert_memory.rs`): a layer goes through them in
//! rounds of as many as there is room for, mostly one of all.

use std::ops::Range;

use foretoken_kernels::matmul::{Group, Product};

use crate::block::{Block, InnerBuffers, room};
use crate::error::ModelError;
use crate::executor::Reading;
use crate::expert_memory::Held;
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
    pub(crate) read: Reading,
    /// Why one of them could not be packed: what the pass says means nothing.
    pub(crate) failure: Option<ModelError>,
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

    /// Of these experts those that some row chose, with how many did.
    fn groups(&self, of: Range<usize>) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        of.map(|expert| (expert, self.starts[expert + 1] - self.starts[expert])).filter(|(_, rows)| *rows > 0)
    }

    /// The same without how many.
    fn experts(&self, of: Range<usize>) -> impl Iterator<Item = usize> + Clone + '_ {
        self.groups(of).map(|(expert, _)| expert)
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
        (number, layer, experts): (usize, &spec::Experts, &Experts<Linear>),
        [scored, read]: [&[f32]; 2],
        buffers: &'b mut ExpertBuffers,
    ) -> &'b [f32] {
        let (rows, width) = (self.rows(), self.spec.width);
        let scores = room(&mut buffers.scores, rows * layer.count);
        self.products.one(scored, rows, width, experts.router.product(scores, false));
        buffers.chosen.fill(scores, &experts.corrections, layer);
        buffers.chosen.scale(&experts.scales);
        let chosen = &buffers.chosen;
        let gathered = room(&mut buffers.gathered, chosen.rows.len() * width);
        for (row, out) in chosen.rows.iter().zip(gathered.chunks_exact_mut(width)) {
            out.copy_from_slice(&read[row * width..][..width]);
        }
        let mut held = Held::new((number, experts), self.memory, chosen.experts(0..layer.count));
        let mut next = chosen.experts(0..layer.count).next();
        while let Some(first) = next {
            next = self.round((layer, first), &mut held, buffers);
        }
        let ExpertBuffers { chosen, said, out, .. } = &mut *buffers;
        let out = room(out, rows * width);
        self.products.compute.pool.each_chunk(out, width, &|row, out| {
            out.fill(0.0);
            for choice in row * layer.chosen..(row + 1) * layer.chosen {
                let (weight, said) = (chosen.weights[choice], &said[chosen.places[choice] * width..][..width]);
                out.iter_mut().zip(said).for_each(|(out, said)| *out += weight * said);
            }
        });
        if let Some((dense, gate)) = &experts.shared {
            self.add_shared((dense, gate.as_ref()), read, buffers);
        }
        &buffers.out[..rows * width]
    }

    /// Has the gathered rows of some experts go through them: those from `first` on for which there is room at a time.
    /// The first of those that are left.
    fn round(
        &self,
        (layer, first): (&spec::Experts, usize),
        held: &mut Held<'_>,
        buffers: &mut ExpertBuffers,
    ) -> Option<usize> {
        let ExpertBuffers { chosen, gathered, gate, up, said, read, failure, .. } = buffers;
        let all = || chosen.experts(first..layer.count);
        // Ranks exchange what each expert says in the same order, however many of them each has room for.
        let end = if self.products.rank().is_some() { all().nth(1) } else { held.end(all()) };
        let round = first..end.unwrap_or(layer.count);
        let (packed, brought) = held.bring(chosen.experts(round.clone()), &self.products.compute.pool);
        *failure = failure.take().or(brought.err());
        read.packed += packed;
        for expert in chosen.experts(round.clone()) {
            read.experts += 1;
            read.bytes += held.get(expert).matrices().map(|matrix| matrix.packed().bytes).sum::<usize>();
        }
        let rows = chosen.starts[round.start]..chosen.starts[round.end];
        let part = |width: usize| rows.start * width..rows.end * width;
        let (width, ffn_width, choices) = (self.spec.width, layer.ffn_width, chosen.rows.len());
        let gated = &mut room(gate, choices * ffn_width)[part(ffn_width)];
        let raised = &mut room(up, choices * ffn_width)[part(ffn_width)];
        let groups = || chosen.groups(round.clone());
        let activation = self.raise(held, groups(), (&gathered[part(width)], ffn_width), (gated, raised));
        self.gate(activation, gated, raised);
        let mut left = &mut room(said, choices * width)[part(width)];
        let lower = |(expert, rows): (usize, usize)| {
            (rows, [held.get(expert).down.product(take(&mut left, rows * width), false)])
        };
        self.grouped(gated, ffn_width, &mut groups().map(lower).collect::<Vec<_>>());
        end
    }

    /// Gates and what they multiply of the gathered rows, and what is applied to the gates.
    fn raise(
        &self,
        held: &Held<'_>,
        chosen: impl Iterator<Item = (usize, usize)>,
        (gathered, ffn_width): (&[f32], usize),
        (mut gated, mut raised): (&mut [f32], &mut [f32]),
    ) -> Activation {
        let mut of_all = Activation::Silu;
        let mut groups = Vec::new();
        for (expert, rows) in chosen {
            let Inner::Gated { activation, gate, up } = &held.get(expert).inner else {
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
