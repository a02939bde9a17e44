//! A dense half and the experts beside it: what each says, normalized by itself, and their sum.
//!
//! The dense half reads what the norm before the feed-forward half makes of the residual stream; the router and the
//! experts read the stream itself, each by a norm of its own. Left out: the norm behind the sum, which is the layer's
//! (`block.rs`).

use crate::block::{Block, FeedBuffers, normalize, normalized, room};
use crate::linear::Linear;
use crate::network::Both;
use crate::spec;

/// Buffers of such layers, `[rows, width]` each, kept between passes.
#[derive(Default)]
pub(crate) struct BothBuffers {
    /// What the router reads.
    scored: Vec<f32>,
    /// What the experts read.
    read: Vec<f32>,
    /// What the dense half says.
    dense: Vec<f32>,
    /// The same of the experts, normalized.
    experts: Vec<f32>,
    /// The sum.
    out: Vec<f32>,
}

impl Block<'_> {
    /// What a layer's dense half says of rows `read` `[rows, width]`, and its experts of those of the stream.
    pub(crate) fn ask_both<'b>(
        &self,
        (number, layer, both): (usize, &spec::Experts, &Both<Linear>),
        [stream, read]: [&[f32]; 2],
        buffers: &'b mut FeedBuffers,
    ) -> &'b [f32] {
        let FeedBuffers { inner, experts, both: own } = buffers;
        let (isa, spec, dense) = (self.isa(), self.spec, &both.dense);
        let said = room(&mut own.dense, stream.len());
        let raised = self.feed(dense, read, inner);
        self.products.one(raised, self.rows(), dense.down.inputs(), dense.down.product(said, false));
        let out = room(&mut own.out, stream.len());
        normalize(isa, spec, &both.dense_post_norm, said, out);
        let scored = normalized(isa, spec, Some(&both.router_norm), stream, &mut own.scored);
        let read = normalized(isa, spec, Some(&both.experts_norm), stream, &mut own.read);
        let said = self.ask_experts((number, layer, &both.experts), [scored, read], experts);
        let said = normalized(isa, spec, Some(&both.experts_post_norm), said, &mut own.experts);
        out.iter_mut().zip(said).for_each(|(out, said)| *out += said);
        out
    }
}
