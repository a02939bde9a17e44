//! The embedding and the output matrix (lm_head) of a loaded network, shared with other networks.
//!
//! Most draft heads (`hidden.rs`) have neither of these: they embed tokens as the target does, and their hidden states
//! are inputs of the target's output matrix (Li et al. 2024, EAGLE). The two are as large as a small draft model, so
//! nothing is copied: both networks read the same memory, which lives until the last of them is dropped. Products with
//! shared matrices have the same bits as in the network that loaded them.
//!
//! Projections, multipliers and soft caps around them are not shared: each network has its own, or takes them from the
//! target's [`Spec`](crate::Spec). The output norm is shared, because some heads read the normalized hidden state.

use std::sync::Arc;

use foretoken_kernels::matmul::product;
use foretoken_kernels::{Compute, Isa};

use crate::batch::Token;
use crate::linear::{Linear, Table};
use crate::network::{Network, NormWeights};
use crate::spec::Norm;

/// The embedding and the output matrix of a loaded network
/// ([`Packed::shared_embeddings`](crate::Packed::shared_embeddings)). Clones share them.
#[derive(Clone)]
pub struct SharedEmbeddings {
    embedding: Table,
    output: Linear,
    output_norm: OutputNorm,
}

/// The norm before the output matrix: its kind, and its weights if there is one.
type OutputNorm = (Norm, Option<Arc<NormWeights>>);

impl SharedEmbeddings {
    /// Shares those of a network, in the form in which they are multiplied. Nothing is copied.
    pub(crate) fn of(network: &Network<Linear>) -> Self {
        let Network { spec, embedding, output_norm, head, .. } = network;
        let weights = output_norm.as_ref().map(|norm| Arc::new(norm.clone()));
        Self { embedding: embedding.clone(), output: head.clone(), output_norm: (spec.norm, weights) }
    }

    /// Both matrices, for a network that is being loaded.
    pub(crate) fn parts(&self) -> (&Table, &Linear) {
        (&self.embedding, &self.output)
    }

    /// Writes the input of the output matrix for rows `x` of the residual stream, `[rows, output_width]`, to `out` of
    /// that size.
    pub(crate) fn normalize(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        match &self.output_norm {
            (_, None) => out.copy_from_slice(x),
            (norm, Some(weights)) => norm.apply(isa, weights, x, out),
        }
    }

    /// Number of elements of a row of the embedding.
    pub fn embedding_width(&self) -> usize {
        self.embedding.width()
    }

    /// Number of elements of an input row of the output matrix.
    pub(crate) fn output_width(&self) -> usize {
        self.output.inputs()
    }

    /// Number of tokens that the output matrix has rows for.
    pub fn vocabulary(&self) -> usize {
        self.output.outputs()
    }

    /// Writes the embeddings of these tokens, `[tokens, embedding_width]`, to `out`, before any multiplier or norm.
    ///
    /// # Panics
    /// If `out` is not of that size, or a token has no row.
    pub fn embed(&self, tokens: &[Token], out: &mut [f32]) {
        assert_eq!(
            out.len(),
            tokens.len() * self.embedding_width(),
            "shared rows: elements of {} tokens",
            tokens.len()
        );
        self.embedding.embed(tokens, out);
    }

    /// Writes the products of `x`, `[rows, output_width]`, with the output matrix to `out`, `[rows, vocabulary]`,
    /// before any multiplier or soft cap.
    ///
    /// # Panics
    /// If `x` or `out` is not of that size.
    pub fn logits(&self, compute: &Compute, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.output_width().max(1);
        product(compute, x, rows, self.output_width(), self.output.product(out, false).product);
    }

    /// Whether both share the same memory, which then counts once.
    pub fn is_same(&self, other: &SharedEmbeddings) -> bool {
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
    fn shared_matrices_are_the_networks_own_in_memory_and_to_the_bit() {
        for name in ["llama", "llama-tied", "llama-biased"] {
            let mut model = load(name);
            let shared = SharedEmbeddings::of(model.network());
            assert!(shared.is_same(&shared.clone()), "{name}: copied");
            let loaded = |model: Model| model.into_loaded().weights.shared_embeddings().expect("the CPU shares them");
            assert!(!shared.is_same(&loaded(load(name))), "{name}: loaded twice");
            // The output of the last layer goes through the norm to the output matrix, the model's and the shared one.
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
            let mut embedded = [vec![0.0; TOKENS.len() * shared.embedding_width()], Vec::new()];
            shared.embed(&TOKENS, &mut embedded[0]);
            embedded[1] = vec![0.0; embedded[0].len()];
            model.network().embedding.embed(&TOKENS, &mut embedded[1]);
            // The matrices outlive the model that loaded them.
            assert!(shared.is_same(&loaded(model)), "{name}: models of the same weights");
            shared.logits(&compute, &read, &mut logits);
            assert_eq!(bits(&logits), bits(&expected), "{name}");
            assert_eq!(bits(&embedded[0]), bits(&embedded[1]), "{name}");
            let row = |at: usize| &embedded[0][at * shared.embedding_width()..][..shared.embedding_width()];
            assert!(row(1) == row(3) && row(0) != row(1), "{name}: rows of tokens");
            assert_eq!((shared.vocabulary(), shared.output_width()), (logits.len() / 5, read.len() / 5), "{name}");
        }
    }
}
