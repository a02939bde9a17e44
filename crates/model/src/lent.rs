//! Rows that a loaded network lends: its embedding and its output rows, for another network to compute with.
//!
//! A head that drafts for a target (`hidden.rs`) mostly has neither of its own: it embeds tokens as the target does,
//! and its hidden states are meant for the target's output rows (Li et al. 2024, EAGLE). They are as large as a small
//! draft model, so nothing of them is copied: both networks read the same memory, which is there until the last of them
//! is gone. Products through lent rows have the bits that they have through the network's own.
//!
//! Left out: what networks do before and behind these rows (projections, multipliers, caps of logits), which each has
//! of its own, or knows from the target's [`Spec`](crate::Spec); but for the norm, which some heads read behind.

use std::sync::Arc;

use foretoken_kernels::matmul::product;
use foretoken_kernels::{Compute, Isa};

use crate::batch::Token;
use crate::linear::{Linear, Table};
use crate::network::{Network, NormWeights};
use crate::spec::Norm;

/// Embedding and output rows of a loaded network ([`Packed::lend`](crate::Packed::lend)). Clones are the same rows.
#[derive(Clone)]
pub struct Lent {
    embedding: Table,
    output: Linear,
    output_norm: OutputNorm,
}

/// The norm before output rows: of what kind it is, and its weights, if there is one.
type OutputNorm = (Norm, Option<Arc<NormWeights>>);

impl Lent {
    /// Those of a network, in the form in which it is computed with. Nothing is copied.
    pub(crate) fn of(network: &Network<Linear>) -> Self {
        let Network { spec, embedding, output_norm, head, .. } = network;
        let weights = output_norm.as_ref().map(|norm| Arc::new(norm.clone()));
        Self { embedding: embedding.clone(), output: head.clone(), output_norm: (spec.norm, weights) }
    }

    /// Both, for a network that is to be loaded.
    pub(crate) fn parts(&self) -> (&Table, &Linear) {
        (&self.embedding, &self.output)
    }

    /// What the output rows read of rows `x` of the residual stream, `[rows, output_width]`, to `out` of that size.
    pub(crate) fn normalize(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        match &self.output_norm {
            (_, None) => out.copy_from_slice(x),
            (norm, Some(weights)) => norm.apply(isa, weights, x, out),
        }
    }

    /// Elements of a row of the embedding.
    pub fn embedding_width(&self) -> usize {
        self.embedding.width()
    }

    /// Elements of a row that the output rows are multiplied with.
    pub fn output_width(&self) -> usize {
        self.output.inputs()
    }

    /// Tokens that there are output rows for.
    pub fn vocabulary(&self) -> usize {
        self.output.outputs()
    }

    /// The embedding of these tokens, `[tokens, embedding_width]`, to `out`: as it lies in the table, before anything
    /// that the network does to it.
    ///
    /// # Panics
    /// If `out` is not of that size, or a token has no row.
    pub fn embed(&self, tokens: &[Token], out: &mut [f32]) {
        assert_eq!(out.len(), tokens.len() * self.embedding_width(), "lent rows: elements of {} tokens", tokens.len());
        self.embedding.embed(tokens, out);
    }

    /// The products of `x`, `[rows, output_width]`, with the output rows, to `out`, `[rows, vocabulary]`: before
    /// anything that the network does to its logits.
    ///
    /// # Panics
    /// If `x` or `out` is not of that size.
    pub fn logits(&self, compute: &Compute, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.output_width().max(1);
        product(compute, x, rows, self.output_width(), self.output.product(out, false));
    }

    /// Whether both are the same rows in memory, so that they take it once.
    pub fn is_same(&self, other: &Lent) -> bool {
        self.embedding.is_same(&other.embedding) && self.output.is_same(&other.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, PageId, Span};
    use crate::block::normalized;
    use crate::checkpoint::Checkpoint;
    use crate::decoder::Model;
    use crate::executor::Executor;
    use crate::options::Options;
    use std::path::Path;

    const TOKENS: [Token; 5] = [3, 1, 4, 1, 5];

    fn load(name: &str) -> Model {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{error}"));
        let options = Options { pages: 1, ..Options::for_positions(32, 1) };
        Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn lent_rows_are_the_networks_own_in_memory_and_to_the_bit() {
        for name in ["llama", "llama-tied", "llama-biased"] {
            let mut model = load(name);
            let lent = Lent::of(model.network());
            assert!(lent.is_same(&lent.clone()), "{name}: copied");
            let loaded = |model: Model| model.into_loaded().weights.lend().expect("the processor lends");
            assert!(!lent.is_same(&loaded(load(name))), "{name}: loaded twice");
            // What the last layer says goes through the norm to the output rows, the model's and the lent ones.
            let (tables, rows) = ([vec![PageId(0)]], [0, 1, 2, 3, 4]);
            let last = model.capacity().hidden.layers - 1;
            let span = Span { tables: &tables, tokens: &TOKENS, wanted: &rows, hidden: &rows, ..Span::default() };
            model.forward(&Batch { spans: &[span], hidden_layers: &[last] }).unwrap();
            let (mut states, mut expected) = (Vec::new(), Vec::new());
            for row in 0..rows.len() {
                states.extend_from_slice(model.outputs().hidden(0, row));
                expected.extend_from_slice(model.outputs().row(row));
            }
            let (mut normed, mut logits, compute) = (Vec::new(), vec![0.0; expected.len()], Compute::new(1));
            let norm = model.network().output_norm.as_ref();
            let read = normalized(compute.isa, model.spec(), norm, &states, &mut normed);
            let read = read[..states.len()].to_vec();
            let mut embedded = [vec![0.0; TOKENS.len() * lent.embedding_width()], Vec::new()];
            lent.embed(&TOKENS, &mut embedded[0]);
            embedded[1] = vec![0.0; embedded[0].len()];
            model.network().embedding.embed(&TOKENS, &mut embedded[1]);
            // They outlive the model that lent them.
            assert!(lent.is_same(&loaded(model)), "{name}: models of the same weights");
            lent.logits(&compute, &read, &mut logits);
            assert_eq!(bits(&logits), bits(&expected), "{name}");
            assert_eq!(bits(&embedded[0]), bits(&embedded[1]), "{name}");
            let row = |at: usize| &embedded[0][at * lent.embedding_width()..][..lent.embedding_width()];
            assert!(row(1) == row(3) && row(0) != row(1), "{name}: rows of tokens");
            assert_eq!((lent.vocabulary(), lent.output_width()), (logits.len() / 5, read.len() / 5), "{name}");
        }
    }
}
