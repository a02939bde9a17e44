//! Check of the tensors that a network does not read.
//!
//! A configuration that describes less than its file would go unnoticed: a network of the first four of six layers runs
//! without an error and writes another text. So every tensor has to be accounted for. Unread tensors of layers beyond
//! the last, of layers that are run, and with other names of this layout are refused: without them the network is a
//! different one. Tensors that no computation needs are ignored (buffers, biases of zeros, a copy of the embedding as
//! the output head, keys and values of layers that attend to those of others). The rest does not belong to the language
//! model, such as vision towers and multi-token prediction layers, and is reported once. A missing tensor is an error
//! when it is read.

use std::collections::BTreeSet;

use foretoken_weights::Tensor;

use super::layout::{Layout, QkNormNames, Qkv};
use crate::checkpoint::{Checkpoint, Config};
use crate::error::ModelError;
use crate::spec::Spec;
use crate::storage::Storage;

/// A matrix that only multi-token prediction layers have: it joins the embedding of a token with a hidden state.
const NEXTN_TENSORS: [&str; 2] = ["eh_proj.weight", "nextn.eh_proj.weight"];

/// Checks all tensors but those in `read`; returns the names of those that are left out, in alphabetical order.
///
/// # Errors
/// If an unread tensor is essential: without it the network would be a different one.
pub(super) fn check(
    checkpoint: &Checkpoint,
    (spec, layout): (&Spec, &Layout),
    read: &BTreeSet<String>,
) -> Result<Vec<String>, ModelError> {
    let prefix = layout.prefix(|name| checkpoint.weights.get(name).is_some());
    let of_encoder = spec.encoder.zip(layout.encoder).map(|(encoder, names)| (names.layers, encoder.layers));
    let layers = [Some((layout.layers, spec.layers)), of_encoder].into_iter().flatten();
    let layers = layers.map(|(layers, count)| (format!("{prefix}{layers}."), count)).collect();
    let classifier = Classifier { checkpoint, spec, layout, prefix, layers };
    let (mut left_out, mut beyond, mut essential) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in checkpoint.weights.iter().filter(|tensor| !read.contains(&tensor.name) && !is_buffer(&tensor.name)) {
        match classifier.classify(tensor)? {
            UnreadTensor::Ignored => {}
            UnreadTensor::OtherPart => left_out.push(tensor.name.clone()),
            UnreadTensor::BeyondLastLayer(layer) => beyond.push((layer, tensor.name.as_str())),
            UnreadTensor::Essential => essential.push(tensor.name.as_str()),
        }
    }
    if let Some(last) = beyond.iter().map(|(layer, _)| *layer).max() {
        let of_half = |([half, _], _): &([usize; 2], &str)| *half == last[0];
        return Err(classifier.too_few_layers(last, &beyond.into_iter().filter(of_half).collect::<Vec<_>>()));
    }
    if let Some(first) = essential.first() {
        return Err(ModelError::Unused {
            file: checkpoint.weights.source().to_string(),
            tensor: (*first).to_string(),
            count: essential.len(),
            family: spec.family,
        });
    }
    Ok(left_out)
}

/// Whether a tensor is a buffer of old checkpoints that follows from the configuration: a mask, or frequencies.
/// (Divisors of frequencies in GGUF files are read with the configuration.)
fn is_buffer(name: &str) -> bool {
    const ENDS: [&str; 14] = [
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
        ".causal_mask",
        ".inv_freq",
        ".cos_cached",
        ".sin_cached",
        ".embed_positions",
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
        // Cross attention has no positions; T5's first files have this all the same.
        ".EncDecAttention.relative_attention_bias.weight",
        ".cross_attn_rel_b.weight",
    ];
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Why a tensor was not read.
enum UnreadTensor {
    /// No computation needs it.
    Ignored,
    /// It does not belong to the language model.
    OtherPart,
    /// It belongs to a layer that is not run: of the network or its encoder (0 or 1), and the layer.
    BeyondLastLayer([usize; 2]),
    /// It should have been read: without it the network is a different one.
    Essential,
}

/// The data that is needed to classify an unread tensor.
struct Classifier<'a> {
    checkpoint: &'a Checkpoint,
    spec: &'a Spec,
    layout: &'a Layout,
    prefix: &'a str,
    /// The prefix of the names of layers, before the number, and the number of layers; then the same of an encoder.
    layers: Vec<(String, usize)>,
}

impl Classifier<'_> {
    fn classify(&self, tensor: &Tensor) -> Result<UnreadTensor, ModelError> {
        let name = tensor.name.as_str();
        let layer = self.layers.iter().enumerate().find_map(|(half, (prefix, count))| {
            let (number, part) = name.strip_prefix(prefix)?.split_once('.')?;
            Some((half, number.parse::<usize>().ok()?, *count, part))
        });
        match layer {
            Some((_, layer, count, _)) if layer >= count && self.is_nextn_layer(layer) => Ok(UnreadTensor::OtherPart),
            Some((half, layer, count, _)) if layer >= count => Ok(UnreadTensor::BeyondLastLayer([half, layer])),
            Some((0, layer, _, part)) if layer >= self.spec.kv_layers() && self.is_key_value(part) => {
                Ok(UnreadTensor::Ignored)
            }
            None if self.layout.embedding_copies.iter().any(|copy| is_of(name, copy)) => {
                self.check_copy(tensor).map(|()| UnreadTensor::Ignored)
            }
            None if self.spec.tied_head && self.is_head(name) => self.is_copy(tensor).map(|()| UnreadTensor::Ignored),
            None if !self.is_known(name) => Ok(UnreadTensor::OtherPart),
            _ if is_zero_bias(tensor) => Ok(UnreadTensor::Ignored),
            _ => Ok(UnreadTensor::Essential),
        }
    }

    /// Whether a layer is a multi-token prediction layer, which the model itself does not need.
    fn is_nextn_layer(&self, layer: usize) -> bool {
        NEXTN_TENSORS
            .iter()
            .any(|part| self.checkpoint.weights.get(&format!("{}{layer}.{part}", self.layers[0].0)).is_some())
    }

    /// Whether a tensor of a layer makes keys or values: files may have them in layers that attend to those of others.
    fn is_key_value(&self, part: &str) -> bool {
        let matrices = if let Qkv::Three([_, key, value]) = self.layout.qkv { [key, value] } else { [""; 2] };
        let norm = if let QkNormNames::SharedByHeads([_, key]) = self.layout.qk_norms { key } else { "" };
        matrices.into_iter().chain([norm]).any(|name| is_of(part, name))
    }

    fn is_head(&self, name: &str) -> bool {
        self.layout.heads.iter().any(|head| is_of(name, head))
    }

    /// Whether a tensor outside the layers has a name that networks of this layout may have.
    fn is_known(&self, name: &str) -> bool {
        let Layout { embedding, positions, embedding_norm, projections, inputs, output_norm, .. } = self.layout;
        let positions = positions.map(|(name, _)| name);
        let optional = [Some(*embedding), positions, *embedding_norm, *output_norm].into_iter().flatten();
        let mut all = optional.chain(*projections).chain(*inputs);
        let own = name.strip_prefix(self.prefix);
        self.is_head(name) || own.is_some_and(|own| all.any(|known| is_of(own, known)))
    }

    /// Checks that the output head is a copy of the embedding, in a file whose configuration says that it is tied.
    ///
    /// Otherwise the file is ambiguous: some programs use such a head and some do not.
    fn is_copy(&self, head: &Tensor) -> Result<(), ModelError> {
        let weights = &self.checkpoint.weights;
        let embedding = format!("{}{}.weight", self.prefix, self.layout.embedding);
        let equal = weights.get(&embedding).is_some_and(|embedding| is_equal(head, embedding));
        head.bytes.release();
        let Config::Json(config) = &self.checkpoint.config else { return Ok(()) };
        if equal {
            return Ok(());
        }
        const FIELD: &str = "tie_word_embeddings";
        let found = config.optional_bool(FIELD)?.map_or("nothing, which means true".to_string(), |is| is.to_string());
        let expected = format!("false, as {} of {} is not the same as {embedding}", head.name, weights.source());
        Err(config.refuse(FIELD, expected, found))
    }

    /// Checks that a copy of the embedding is one: programs differ in which of the two they use.
    fn check_copy(&self, tensor: &Tensor) -> Result<(), ModelError> {
        let weights = &self.checkpoint.weights;
        let embedding = format!("{}{}.weight", self.prefix, self.layout.embedding);
        let equal = weights.get(&embedding).is_some_and(|embedding| is_equal(tensor, embedding));
        tensor.bytes.release();
        let field = format!("tensor {}", tensor.name);
        let other = || ModelError::config(weights.source(), field, format!("a copy of {embedding}"), "another matrix");
        if equal { Ok(()) } else { Err(other()) }
    }

    /// An error about the number of layers. `last` is the last layer that has tensors, of the network or its encoder.
    fn too_few_layers(&self, [half, last]: [usize; 2], beyond: &[([usize; 2], &str)]) -> ModelError {
        let (file, field) = self.layers_field(half);
        let (source, there) = (self.checkpoint.weights.source(), last.saturating_add(1));
        let there_is = if source == file { "there are".to_string() } else { format!("{source} has") };
        let expected = format!(
            "{there}, as {there_is} tensors of so many layers ({} of those beyond, the first {})",
            beyond.len(),
            beyond[0].1
        );
        ModelError::config(file, field, expected, self.layers[half].1)
    }

    /// The file and the field that have the number of layers, of the network or its encoder.
    fn layers_field(&self, half: usize) -> (&str, String) {
        const FIELDS: [&str; 5] = ["num_decoder_layers", "num_hidden_layers", "n_layer", "num_layers", "n_layers"];
        match &self.checkpoint.config {
            Config::Gguf(metadata) => {
                let of_decoder = format!("{}.decoder_block_count", self.spec.family);
                let is_named = half == 0 && metadata.get(&of_decoder).is_some();
                (metadata.source(), if is_named { of_decoder } else { format!("{}.block_count", self.spec.family) })
            }
            Config::Json(config) if half == 1 => (config.file(), "num_layers".to_string()),
            Config::Json(config) => {
                let text = config.optional_object("text_config").ok().flatten();
                let found = FIELDS.into_iter().find(|field| config.has(field));
                let within = text.and_then(|text| FIELDS.into_iter().find(|field| text.has(field)));
                let field = match (within, found) {
                    (Some(field), _) => format!("text_config.{field}"),
                    (None, found) => found.unwrap_or(FIELDS[0]).to_string(),
                };
                (config.file(), field)
            }
        }
    }
}

/// Whether a tensor's name is this one followed by `.weight`, `.bias`, or a part of a quantized matrix.
fn is_of(tensor: &str, name: &str) -> bool {
    !name.is_empty()
        && tensor.strip_prefix(name).is_some_and(|rest| rest.starts_with('.') && rest.rfind('.') == Some(0))
}

/// Whether a tensor is a bias of zeros, since some programs write one wherever there could be a bias.
fn is_zero_bias(tensor: &Tensor) -> bool {
    tensor.name.ends_with(".bias") && tensor.shape.len() == 1 && tensor.bytes.iter().all(|byte| *byte == 0)
}

/// Whether two matrices hold the same numbers.
fn is_equal(one: &Tensor, other: &Tensor) -> bool {
    if one.shape != other.shape {
        return false;
    }
    if one.dtype == other.dtype {
        return one.bytes[..] == other.bytes[..];
    }
    let is_floats = |tensor: &Tensor| ["F32", "F16", "BF16"].contains(&tensor.dtype.name());
    if !is_floats(one) || !is_floats(other) {
        return false;
    }
    const CHUNK: usize = 4096;
    let (one, other) = (Storage::new(one), Storage::new(other));
    let (mut left, mut right) = (vec![0.0; CHUNK], vec![0.0; CHUNK]);
    (0..one.elements()).step_by(CHUNK).all(|first| {
        let len = CHUNK.min(one.elements() - first);
        one.widen(first..first + len, &mut left[..len]);
        other.widen(first..first + len, &mut right[..len]);
        left[..len] == right[..len]
    })
}
