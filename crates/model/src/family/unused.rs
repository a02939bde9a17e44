//! What a network leaves of its files: tensors that it does not read, and what they mean.
//!
//! The idea: a configuration that says less than its file is not an error that any tensor would show, as a network of
//! the first four of six layers runs well and writes another text. So every tensor has to be accounted for. Those of
//! layers beyond the last, those that belong to a layer that is run, and those with a name of this layout are refused:
//! without them it is another network. What is known to change nothing is passed over (buffers, biases of zeros, a copy
//! of the embedding as the head, keys and values of layers that attend to those of others). The rest is not the text
//! network's, as the towers of images or layers that predict further tokens, and is told once. Left out: files of which
//! a tensor is missing, which is seen where it is read.

use std::collections::BTreeSet;

use foretoken_weights::Tensor;

use super::layout::{Layout, Pieces, Qkv};
use crate::checkpoint::{Checkpoint, Config};
use crate::error::ModelError;
use crate::spec::Spec;
use crate::storage::Storage;

/// What tensors of layers that predict further tokens have and no others: the matrix that joins a token with a state.
const FURTHER: [&str; 2] = ["eh_proj.weight", "nextn.eh_proj.weight"];

/// The names of the tensors that are told, in order of the alphabet.
///
/// `read`: those that were read.
///
/// # Errors
/// A tensor would have to be read for the network to be the one of the file.
pub(super) fn told(
    checkpoint: &Checkpoint,
    (spec, layout): (&Spec, &Layout),
    read: &BTreeSet<String>,
) -> Result<Vec<String>, ModelError> {
    let prefix = layout.prefix(|name| checkpoint.weights.get(name).is_some());
    let layers = format!("{prefix}{}.", layout.layers);
    let judge = Judge { checkpoint, spec, layout, prefix, layers };
    let (mut told, mut beyond, mut strays) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in checkpoint.weights.iter().filter(|tensor| !read.contains(&tensor.name) && !is_buffer(&tensor.name)) {
        match judge.means(tensor)? {
            Means::Nothing => {}
            Means::Other => told.push(tensor.name.clone()),
            Means::Beyond(layer) => beyond.push((layer, tensor.name.as_str())),
            Means::Stray => strays.push(tensor.name.as_str()),
        }
    }
    if let Some(last) = beyond.iter().map(|(layer, _)| *layer).max() {
        return Err(judge.too_few_layers(last, &beyond));
    }
    if let Some(first) = strays.first() {
        return Err(ModelError::Unused {
            file: checkpoint.weights.source().to_string(),
            tensor: (*first).to_string(),
            count: strays.len(),
            family: spec.family,
        });
    }
    Ok(told)
}

/// Whether a tensor is one that old checkpoints carry along and that follows from the configuration: a mask, or
/// frequencies. (Divisors of frequencies in GGUF files are read with the configuration.)
fn is_buffer(name: &str) -> bool {
    const ENDS: [&str; 12] = [
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
    ];
    ENDS.iter().any(|end| name.ends_with(end))
}

/// What it means that a tensor was not read.
enum Means {
    /// Nothing at all.
    Nothing,
    /// That it is of something else than the text's network.
    Other,
    /// That its layer is not run.
    Beyond(usize),
    /// That the network is another one.
    Stray,
}

/// What is needed to judge.
struct Judge<'a> {
    checkpoint: &'a Checkpoint,
    spec: &'a Spec,
    layout: &'a Layout,
    prefix: &'a str,
    /// What the names of layers begin with, before the number.
    layers: String,
}

impl Judge<'_> {
    fn means(&self, tensor: &Tensor) -> Result<Means, ModelError> {
        let (name, Spec { layers, .. }) = (tensor.name.as_str(), self.spec);
        let layer = name.strip_prefix(&self.layers).and_then(|rest| rest.split_once('.'));
        match layer.and_then(|(number, part)| Some((number.parse::<usize>().ok()?, part))) {
            Some((layer, _)) if layer >= *layers && self.predicts_further(layer) => Ok(Means::Other),
            Some((layer, _)) if layer >= *layers => Ok(Means::Beyond(layer)),
            Some((layer, part)) if layer >= self.spec.kv_layers() && self.is_key_value(part) => Ok(Means::Nothing),
            None if self.spec.tied_head && self.is_head(name) => self.is_copy(tensor).map(|()| Means::Nothing),
            None if !self.is_known(name) => Ok(Means::Other),
            _ if is_zero_bias(tensor) => Ok(Means::Nothing),
            _ => Ok(Means::Stray),
        }
    }

    /// Whether a layer is one that guesses tokens behind the next, which its model does not need.
    fn predicts_further(&self, layer: usize) -> bool {
        FURTHER.iter().any(|part| self.checkpoint.weights.get(&format!("{}{layer}.{part}", self.layers)).is_some())
    }

    /// Whether a part of a layer makes keys or values: files may have them in layers that attend to those of others.
    fn is_key_value(&self, part: &str) -> bool {
        let matrices = if let Qkv::Three([_, key, value]) = self.layout.qkv { [key, value] } else { [""; 2] };
        let norm = if let Pieces::EveryHead([_, key]) = self.layout.piece_norms { key } else { "" };
        matrices.into_iter().chain([norm]).any(|name| is_of(part, name))
    }

    fn is_head(&self, name: &str) -> bool {
        self.layout.heads.iter().any(|head| is_of(name, head))
    }

    /// Whether a tensor outside the layers is called as one that networks of this layout may have.
    fn is_known(&self, name: &str) -> bool {
        let Layout { embedding, positions, embedding_norm, projections, inputs, output_norm, .. } = self.layout;
        let positions = positions.map(|(name, _)| name);
        let optional = [Some(*embedding), positions, *embedding_norm, *output_norm].into_iter().flatten();
        let mut all = optional.chain(*projections).chain(*inputs);
        let own = name.strip_prefix(self.prefix);
        self.is_head(name) || own.is_some_and(|own| all.any(|known| is_of(own, known)))
    }

    /// Checks that the head of a file whose configuration takes the embedding for it is a copy of that.
    ///
    /// What else it could be is not known: some programs use such a head and some do not.
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

    /// An error about the number of layers. `last`: the last of those beyond.
    fn too_few_layers(&self, last: usize, beyond: &[(usize, &str)]) -> ModelError {
        let (file, field) = self.layers_field();
        let (source, there) = (self.checkpoint.weights.source(), last.saturating_add(1));
        let there_is = if source == file { "there are".to_string() } else { format!("{source} has") };
        let expected = format!(
            "{there}, as {there_is} tensors of so many layers ({} of those beyond, the first {})",
            beyond.len(),
            beyond[0].1
        );
        ModelError::config(file, field, expected, self.spec.layers)
    }

    /// The file and the field that say how many layers there are.
    fn layers_field(&self) -> (&str, String) {
        const FIELDS: [&str; 4] = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
        match &self.checkpoint.config {
            Config::Gguf(metadata) => (metadata.source(), format!("{}.block_count", self.spec.family)),
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

/// Whether a tensor's name is this one and what comes behind it: `.weight`, `.bias`, or a part of a quantized matrix.
fn is_of(tensor: &str, name: &str) -> bool {
    !name.is_empty()
        && tensor.strip_prefix(name).is_some_and(|rest| rest.starts_with('.') && rest.rfind('.') == Some(0))
}

/// Whether a tensor adds nothing: some programs write biases of zeros wherever there could be one.
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
