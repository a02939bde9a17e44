//! The experts of a layer: how rows are routed to them, and their products.
//!
//! Rows are gathered by the experts that they chose, so each expert's weights are read once per pass, however many rows
//! chose it; and each row adds the outputs of its experts in the order of its own choices, the highest score first. So
//! the bits of a row depend on that row alone, and neither on the other rows of the pass nor on threads.
//!
//! The router is computed in floats and never converted to another type of weights: rounded logits would choose other
//! experts. A layer reports the weights that it reads, those of its distinct experts. How a row chooses is in
//! `router.rs`. If not all experts are in memory (`expert_memory.rs`), a layer goes through them in rounds of as many
//! as fit; in most cases there is one round.

use std::ops::Range;

use super::{Block, InnerBuffers, grow_to};
use crate::error::ModelError;
use crate::executor::WeightsRead;
use crate::expert_memory::LayerExperts;
use crate::faults;
use crate::linear::Linear;
use crate::network::{Dense, Experts, Inner};
use crate::products::OutputGroup;
use crate::router::ExpertSelector;
use crate::spec::{self, Activation};

/// Buffers of the experts of a layer, kept between passes.
#[derive(Default)]
pub(crate) struct ExpertBuffers {
    /// `[rows, experts]`.
    router_logits: Vec<f32>,
    routing: Routing,
    /// The rows that each expert gets, one expert after another, `[rows * chosen, width]`.
    gathered: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// The inner outputs of all ranks.
    inner: Vec<f32>,
    /// The outputs of the experts for these rows.
    output: Vec<f32>,
    shared: InnerBuffers,
    shared_gate: Vec<f32>,
    shared_output: Vec<f32>,
    /// The output of the layer, `[rows, width]`.
    out: Vec<f32>,
    /// Experts of all layers that this pass has read so far, and the bytes of their weights.
    pub(crate) read: WeightsRead,
    /// The error of an expert that could not be packed; then the outputs of the pass may not be used.
    pub(crate) failure: Option<ModelError>,
}

/// Which rows go through which experts.
#[derive(Default)]
struct Routing {
    /// The experts of each row, the highest score first, `[rows, chosen]`.
    experts: Vec<u32>,
    /// The weights of these choices.
    weights: Vec<f32>,
    /// The gathered row of each of these choices.
    gathered_rows: Vec<usize>,
    /// The row of the pass of each gathered row.
    rows: Vec<usize>,
    /// The first gathered row of each expert, followed by the number of gathered rows.
    starts: Vec<usize>,
    /// The place of the next row of each expert, while rows are distributed.
    next: Vec<usize>,
    selector: ExpertSelector,
}

impl Routing {
    /// Routes rows by the router's logits, `[rows, experts]`. `corrections` are those of the layer, or empty.
    fn fill(&mut self, logits: &[f32], corrections: &[f32], layer: &spec::Experts) {
        let spec::Experts { count, chosen, .. } = *layer;
        let Self { experts: all, weights, gathered_rows, rows, starts, next, selector } = self;
        all.clear();
        weights.clear();
        for logits in logits.chunks_exact(count) {
            selector.select(layer, logits, corrections, (all, weights));
        }
        faults::apply_fault(chosen, all, weights);
        starts.clear();
        starts.resize(count + 1, 0);
        all.iter().for_each(|expert| starts[*expert as usize + 1] += 1);
        (0..count).for_each(|expert| starts[expert + 1] += starts[expert]);
        rows.clear();
        rows.resize(all.len(), 0);
        gathered_rows.clear();
        next.clone_from(starts);
        for (i, expert) in all.iter().enumerate() {
            let gathered_row = &mut next[*expert as usize];
            rows[*gathered_row] = i / chosen;
            gathered_rows.push(*gathered_row);
            *gathered_row += 1;
        }
    }

    /// Multiplies the weights by the scale of their experts, if there are scales.
    fn scale(&mut self, scales: &[f32]) {
        if !scales.is_empty() {
            let scale_of = |expert: &u32| scales[*expert as usize];
            self.weights.iter_mut().zip(&self.experts).for_each(|(weight, expert)| *weight *= scale_of(expert));
        }
    }

    /// The experts of a range that some row chose, each with the number of rows that chose it.
    fn groups(&self, range: Range<usize>) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
        range.map(|expert| (expert, self.starts[expert + 1] - self.starts[expert])).filter(|(_, rows)| *rows > 0)
    }

    /// The experts of a range that some row chose.
    fn experts(&self, range: Range<usize>) -> impl Iterator<Item = usize> + Clone + '_ {
        self.groups(range).map(|(expert, _)| expert)
    }
}

/// Splits off the first `len` elements.
fn take<'a>(left: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(left).split_at_mut(len);
    *left = rest;
    first
}

impl Block<'_> {
    /// Runs a layer's experts on rows `input` `[rows, width]`; yields the outputs, of the same shape. In most networks
    /// `router_input` equals `input`.
    pub(super) fn run_experts<'b>(
        &self,
        (number, layer, experts): (usize, &spec::Experts, &Experts<Linear>),
        [router_input, input]: [&[f32]; 2],
        buffers: &'b mut ExpertBuffers,
    ) -> &'b [f32] {
        let (rows, width) = (self.rows(), self.spec.width);
        let logits = grow_to(&mut buffers.router_logits, rows * layer.count);
        self.products.one(router_input, rows, width, experts.router.product(logits, false));
        buffers.routing.fill(logits, &experts.corrections, layer);
        buffers.routing.scale(&experts.scales);
        let routing = &buffers.routing;
        let gathered = grow_to(&mut buffers.gathered, routing.rows.len() * width);
        for (row, out) in routing.rows.iter().zip(gathered.chunks_exact_mut(width)) {
            out.copy_from_slice(&input[row * width..][..width]);
        }
        let mut loaded = LayerExperts::new((number, experts), self.memory, routing.experts(0..layer.count));
        let mut next = routing.experts(0..layer.count).next();
        while let Some(first) = next {
            next = self.round((layer, first), &mut loaded, buffers);
        }
        let ExpertBuffers { routing, output, out, .. } = &mut *buffers;
        let out = grow_to(out, rows * width);
        self.products.compute.pool.each_chunk(out, width, &|row, out| {
            out.fill(0.0);
            for choice in row * layer.chosen..(row + 1) * layer.chosen {
                let (weight, row) = (routing.weights[choice], routing.gathered_rows[choice]);
                let output = &output[row * width..][..width];
                out.iter_mut().zip(output).for_each(|(out, output)| *out += weight * output);
            }
        });
        if let Some((dense, gate)) = &experts.shared {
            self.add_shared((dense, gate.as_ref()), input, buffers);
        }
        &buffers.out[..rows * width]
    }

    /// Runs experts from `first` on, as many as there is room for at a time, on their gathered rows; yields the first
    /// of those that are left.
    fn round(
        &self,
        (layer, first): (&spec::Experts, usize),
        loaded: &mut LayerExperts<'_>,
        buffers: &mut ExpertBuffers,
    ) -> Option<usize> {
        let ExpertBuffers { routing, gathered, gate, up, inner, output, read, failure, .. } = buffers;
        let all = || routing.experts(first..layer.count);
        // Ranks exchange the outputs of one expert at a time, so that their order does not depend on each rank's
        // memory.
        let end = if self.products.rank().is_some() { all().nth(1) } else { loaded.end(all()) };
        let round = first..end.unwrap_or(layer.count);
        let (packed, result) = loaded.load_missing(routing.experts(round.clone()), &self.products.compute.pool);
        *failure = failure.take().or(result.err());
        read.packed += packed;
        for expert in routing.experts(round.clone()) {
            read.experts += 1;
            read.bytes += loaded.get(expert).matrices().map(|matrix| matrix.packed().bytes).sum::<usize>();
        }
        let rows = routing.starts[round.start]..routing.starts[round.end];
        let part = |width: usize| rows.start * width..rows.end * width;
        let (width, ffn_width, choices) = (self.spec.width, layer.ffn_width, routing.rows.len());
        let (Inner::Gated { up: first, .. } | Inner::Plain { up: first, .. }) = &loaded.get(round.start).inner;
        // All experts are split alike.
        let (own_width, unit, rounding) = (first.own_outputs(), first.unit(), loaded.get(round.start).down.rounding());
        let gated = &mut grow_to(gate, choices * ffn_width)[part(own_width)];
        let raised = &mut grow_to(up, choices * ffn_width)[part(own_width)];
        let groups = || routing.groups(round.clone());
        let activation = self.raise(loaded, groups(), (&gathered[part(width)], own_width), (gated, raised));
        self.gate(activation, gated, raised);
        let mut gated = self.products.gather(gated, [rows.len(), ffn_width, unit], rounding, inner);
        let mut left = &mut grow_to(output, choices * width)[part(width)];
        let lower = |(expert, rows): (usize, usize)| -> OutputGroup<'_, '_, 1> {
            let (x, behind) = gated.split_at(rows * ffn_width);
            gated = behind;
            (x, rows, [loaded.get(expert).down.product(take(&mut left, rows * width), false)])
        };
        let lowered = groups().map(lower).collect();
        self.products.grouped(ffn_width, lowered);
        end
    }

    /// Multiplies the gathered rows with this rank's part of the gate and up matrices of their experts; yields the
    /// activation of the gates.
    fn raise(
        &self,
        loaded: &LayerExperts<'_>,
        chosen: impl Iterator<Item = (usize, usize)>,
        (gathered, own_width): (&[f32], usize),
        (mut gated, mut raised): (&mut [f32], &mut [f32]),
    ) -> Activation {
        let (mut of_all, mut left, width) = (Activation::Silu, gathered, self.spec.width);
        let mut groups = Vec::new();
        for (expert, rows) in chosen {
            let Inner::Gated { activation, gate, up } = &loaded.get(expert).inner else {
                unreachable!("experts without gates")
            };
            of_all = *activation;
            let (x, behind) = left.split_at(rows * width);
            left = behind;
            let (gated, raised) = (take(&mut gated, rows * own_width), take(&mut raised, rows * own_width));
            groups.push((x, rows, [gate.product(gated, false), up.product(raised, false)]));
        }
        self.products.own_grouped(width, groups);
        of_all
    }

    /// Adds the output of the shared expert, which all rows go through.
    fn add_shared(&self, (dense, gate): (&Dense<Linear>, Option<&Linear>), input: &[f32], buffers: &mut ExpertBuffers) {
        let (rows, width) = (self.rows(), self.spec.width);
        let ExpertBuffers { shared, shared_gate, shared_output, out, .. } = buffers;
        let inner = self.ffn_inner(dense, input, shared);
        let output = grow_to(shared_output, rows * width);
        self.products.one(inner, rows, dense.down.inputs(), dense.down.product(output, false));
        let shares = grow_to(shared_gate, rows);
        shares.fill(1.0);
        if let Some(gate) = gate {
            self.products.one(input, rows, width, gate.product(shares, false));
            shares.iter_mut().for_each(|share| *share = 1.0 / (1.0 + (-*share).exp()));
        }
        let rows = out.chunks_exact_mut(width).zip(output.chunks_exact(width));
        for ((out, output), share) in rows.zip(shares) {
            out.iter_mut().zip(output).for_each(|(out, output)| *out += *share * output);
        }
    }
}
