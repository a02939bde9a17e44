//! One file a family: configuration and tensor names in, [`Spec`] and layers out.
//!
//! Everything that is particular to a format stops here: names, permuted rows, transposed matrices, fused
//! tensors, scaling of frequencies. What comes out is the same `Parts` for all, so the decoder has one form.

use foretoken_kernels::Pool;
use foretoken_weights::{Dtype, Tensor, Weights};

use crate::checkpoint::{Checkpoint, Config};
use crate::error::ModelError;
use crate::linear::{Linear, Storage, Table, Unpacked};
use crate::spec::Spec;
use crate::weight_type::WeightType;

mod gpt2;
mod llama;
mod rope;

/// Called as loading goes on, with how many layers are done and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Weight and, where the family has one, bias of a normalization.
pub(crate) struct NormWeights {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// The tensors of one block.
pub(crate) struct Layer {
    pub(crate) attention_norm: NormWeights,
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) attention_output: Linear,
    pub(crate) ffn_norm: NormWeights,
    /// Only of gated feed-forward.
    pub(crate) gate: Option<Linear>,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

/// A network in the one form that the decoder runs.
pub(crate) struct Parts {
    pub(crate) spec: Spec,
    pub(crate) embedding: Table,
    /// Only of learned positions.
    pub(crate) positions: Option<Table>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: NormWeights,
    pub(crate) head: Linear,
}

/// The families there are, as `model_type` and `general.architecture` spell them.
const FAMILIES: &str = "one of llama, gpt2";

/// What a checkpoint's configuration says, without touching its tensors.
///
/// # Errors
/// The family is unknown, or a field is missing, impossible or asks for something that is not implemented.
pub fn spec(checkpoint: &Checkpoint) -> Result<Spec, ModelError> {
    let family = family_name(checkpoint)?;
    if let Config::Json(config) = &checkpoint.config
        && config.has("quantization_config")
    {
        return Err(config.refuse("quantization_config", "nothing (unquantized weights)", "a quantization"));
    }
    match (family.as_str(), &checkpoint.config) {
        ("llama", Config::Json(config)) => llama::spec_of_json(config),
        ("llama", Config::Gguf(metadata)) => llama::spec_of_gguf(metadata, &checkpoint.weights),
        ("gpt2", Config::Json(config)) => gpt2::spec_of_json(config),
        ("gpt2", Config::Gguf(metadata)) => gpt2::spec_of_gguf(metadata, &checkpoint.weights),
        (found, Config::Json(config)) => Err(config.refuse("model_type", FAMILIES, format!("{found:?}"))),
        (found, Config::Gguf(_)) => {
            Err(ModelError::config(&checkpoint.name, "general.architecture", FAMILIES, format!("{found:?}")))
        }
    }
}

/// Reads a whole network.
///
/// # Errors
/// As [`spec`], or a tensor is missing or contradicts the configuration.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    pool: &Pool,
    wanted: Option<WeightType>,
    progress: Progress<'_>,
) -> Result<Parts, ModelError> {
    let spec = spec(checkpoint)?;
    let gguf = matches!(checkpoint.config, Config::Gguf(_));
    let tensors = Tensors { weights: &checkpoint.weights, pool, wanted };
    match spec.family {
        "llama" => llama::load(spec, tensors, &checkpoint.config, progress),
        "gpt2" => gpt2::load(spec, tensors, gguf, progress),
        other => unreachable!("spec() let family {other} through"),
    }
}

fn family_name(checkpoint: &Checkpoint) -> Result<String, ModelError> {
    match &checkpoint.config {
        Config::Json(config) => {
            let name = config.optional_str("model_type")?;
            name.map(str::to_string).ok_or_else(|| config.refuse("model_type", FAMILIES, "nothing"))
        }
        Config::Gguf(metadata) => Ok(metadata.str("general.architecture")?.to_string()),
    }
}

/// Bounds that keep a hostile configuration from overflowing products of its fields. Far beyond any network.
const FIELD_MAX: usize = 1 << 24;

/// Checks a field that counts something.
fn count(file: &str, field: &str, found: usize) -> Result<usize, ModelError> {
    if (1..=FIELD_MAX).contains(&found) {
        Ok(found)
    } else {
        Err(ModelError::config(file, field, format!("a number from 1 to {FIELD_MAX}"), found))
    }
}

/// Widest head believed; the widest known have 256.
const HEAD_DIM_MAX: usize = 1 << 12;

/// Checks the width of a head: rotary frequencies are worked out before any tensor can contradict it.
fn check_head_dim(file: &str, field: &str, found: usize) -> Result<usize, ModelError> {
    if (1..=HEAD_DIM_MAX).contains(&found) {
        Ok(found)
    } else {
        Err(ModelError::config(file, field, format!("a width of heads from 1 to {HEAD_DIM_MAX}"), found))
    }
}

/// Checks what is added to a variance: NaN or a negative number would make every row NaN.
fn check_epsilon(file: &str, field: &str, found: f32) -> Result<f32, ModelError> {
    if found >= 0.0 && found.is_finite() {
        Ok(found)
    } else {
        Err(ModelError::config(file, field, "a finite number of at least 0", found))
    }
}

/// Checks the fields that must divide one another, whatever the family.
fn check_heads(file: &str, fields: [&str; 2], heads: usize, kv_heads: usize) -> Result<(), ModelError> {
    if heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let expected = format!("a divisor of {} = {heads}", fields[0]);
    Err(ModelError::config(file, fields[1], expected, kv_heads))
}

/// Whether a linear layer has a bias. A tensor that the configuration promises and the file lacks is an error: a
/// network without it would still talk, and be wrong.
#[derive(Clone, Copy)]
enum Bias {
    Required,
    /// Left alone even if the file has one, as transformers does.
    None,
    /// The file decides: formats whose configuration does not say.
    IfThere,
}

/// The tensor of this name, which must be there and have this shape.
fn require<'a>(weights: &'a Weights, name: &str, shape: &[usize]) -> Result<&'a Tensor, ModelError> {
    let tensor = weights.require(name)?;
    if tensor.shape != shape {
        return Err(ModelError::Shape {
            file: weights.source().to_string(),
            tensor: name.to_string(),
            expected: shape.to_vec(),
            found: tensor.shape.clone(),
        });
    }
    Ok(tensor)
}

/// A vector, widened: norms and biases are small and used by element-wise kernels.
fn vector(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    let storage = Storage::new(require(weights, name, &[len])?);
    let mut out = vec![0.0; len];
    storage.widen(0..len, &mut out);
    Ok(out)
}

/// A vector that may be missing.
fn optional_vector(weights: &Weights, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
    if weights.get(name).is_some() { vector(weights, name, len).map(Some) } else { Ok(None) }
}

/// Finds tensors by name, checks their shapes against the configuration, and brings matrices to the form of products.
#[derive(Clone, Copy)]
struct Tensors<'a> {
    weights: &'a Weights,
    pool: &'a Pool,
    /// The type that matrices of floats are brought to; their own where nothing is asked for.
    wanted: Option<WeightType>,
}

impl Tensors<'_> {
    fn has(&self, name: &str) -> bool {
        self.weights.get(name).is_some()
    }

    fn require(&self, name: &str, shape: &[usize]) -> Result<&Tensor, ModelError> {
        require(self.weights, name, shape)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        vector(self.weights, name, len)
    }

    fn bias(&self, name: &str, len: usize, bias: Bias) -> Result<Option<Vec<f32>>, ModelError> {
        let name = format!("{name}.bias");
        match bias {
            Bias::Required => self.vector(&name, len).map(Some),
            Bias::None => Ok(None),
            Bias::IfThere => optional_vector(self.weights, &name, len),
        }
    }

    /// `name.weight` `[rows, width]`, of which single rows are read.
    fn table(&self, name: &str, width: usize, rows: usize) -> Result<Table, ModelError> {
        Ok(Table::new(Storage::new(self.require(&format!("{name}.weight"), &[rows, width])?), width, rows))
    }

    /// The head: `name.weight` `[vocabulary, width]`, or the embedding where there is no such name.
    fn head(&self, name: Option<&str>, embedding: &Table, spec: &Spec) -> Result<Linear, ModelError> {
        let wanted = self.wanted.map(WeightType::of_head);
        let Some(name) = name else {
            if let (Some(wanted), Some(format)) = (wanted, embedding.format()) {
                let field = format!("the embedding, which is the head: --dtype {wanted}");
                let expected = "weights in F32, F16 or BF16";
                return Err(ModelError::config(self.weights.source(), field, expected, format.name()));
            }
            return Ok(embedding.matrix().pack(self.pool, wanted));
        };
        Ok(self.unpacked(name, spec.width, spec.vocabulary, Bias::None)?.pack(self.pool, wanted))
    }

    /// `name.weight` `[outputs, inputs]` and `name.bias`, as they lie.
    fn unpacked(&self, name: &str, inputs: usize, outputs: usize, bias: Bias) -> Result<Unpacked, ModelError> {
        let tensor = self.require(&format!("{name}.weight"), &[outputs, inputs])?;
        self.check_wanted(tensor)?;
        Ok(Unpacked::new(Storage::new(tensor), self.bias(name, outputs, bias)?, inputs, outputs))
    }

    /// The same, packed.
    fn linear(&self, name: &str, inputs: usize, outputs: usize, bias: Bias) -> Result<Linear, ModelError> {
        Ok(self.pack(self.unpacked(name, inputs, outputs, bias)?))
    }

    fn pack(&self, layer: Unpacked) -> Linear {
        layer.pack(self.pool, self.wanted)
    }

    /// The same of a weight that is stored `[inputs, outputs]`, copied.
    fn transposed(&self, name: &str, inputs: usize, outputs: usize, bias: Bias) -> Result<Unpacked, ModelError> {
        let storage = Storage::new(self.require(&format!("{name}.weight"), &[inputs, outputs])?);
        Ok(Unpacked::from_transposed(&storage, self.bias(name, outputs, bias)?, inputs, outputs))
    }

    /// Whether the tensor can be brought to the type that is asked for.
    fn check_wanted(&self, tensor: &Tensor) -> Result<(), ModelError> {
        match (self.wanted, tensor.dtype) {
            (None, _) | (_, Dtype::F32 | Dtype::F16 | Dtype::BF16) => Ok(()),
            (Some(wanted), found) => {
                let field = format!("tensor {}: --dtype {wanted}", tensor.name);
                Err(ModelError::config(self.weights.source(), field, "weights in F32, F16 or BF16", found))
            }
        }
    }

    /// `name.weight` and, if `biased`, `name.bias`, of a normalization.
    fn norm(&self, name: &str, width: usize, biased: bool) -> Result<NormWeights, ModelError> {
        let bias = if biased { self.vector(&format!("{name}.bias"), width)? } else { Vec::new() };
        Ok(NormWeights { weight: self.vector(&format!("{name}.weight"), width)?, bias })
    }
}

/// Rows of the embedding: what a GGUF file's vocabulary has, whatever its keys say.
fn gguf_vocabulary(metadata: &foretoken_weights::gguf::Metadata, weights: &Weights) -> Result<usize, ModelError> {
    let embedding = weights.require("token_embd.weight")?;
    match embedding.shape.as_slice() {
        [rows, _] => count(metadata.source(), "rows of tensor token_embd.weight", *rows),
        other => Err(ModelError::config(
            metadata.source(),
            "shape of tensor token_embd.weight",
            "two dimensions",
            other.len(),
        )),
    }
}
