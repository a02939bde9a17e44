//! Files of Medusa heads (Cai et al. 2024), in the authors' format and in vLLM's.
//!
//! The authors' configuration has the numbers of heads and blocks but not their width, which is that of the tensors; a
//! file may have more heads than its configuration has. The heads read the stream after the target's last layer and
//! norm. Not supported are pickled files, an output matrix that all heads share, and reduced vocabularies.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::json;
use super::tensors::{Bias, Tensors};
use super::{Family, Plan, layout};
use crate::checkpoint::{Checkpoint, JsonConfig};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::medusa::Head;
use crate::spec::{DraftHead, HeadKind, Positions, Rotation, Scaling, Spec};

pub(super) const FAMILY: &Family = &Family::new(None, None);

/// The fields with the numbers of heads and blocks, in the authors' format and in vLLM's.
const FIELDS: [[&str; 2]; 2] = [["medusa_num_heads", "medusa_num_layers"], ["num_heads", "num_hidden_layers"]];

/// A context that no sequence reaches, since nothing is cached and nothing depends on a position.
const CONTEXT: usize = 1 << 24;

/// Whether a configuration describes Medusa heads.
pub(super) fn is(config: &JsonConfig) -> Result<bool, ModelError> {
    Ok(config.has(FIELDS[0][0]) || config.optional_str("model_type")? == Some("medusa"))
}

/// The plan of a checkpoint of Medusa heads.
pub(super) fn from_json(config: &JsonConfig, checkpoint: &Checkpoint) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["original_lm_head"])?;
    let [of_heads, of_blocks] = FIELDS[usize::from(!config.has(FIELDS[0][0]))];
    let small = |field: &str| {
        let found = count(config.file(), field, config.usize(field)?)?;
        if found <= 64 { Ok(found) } else { Err(config.refuse(field, "a number from 1 to 64", found)) }
    };
    let (heads, blocks) = (small(of_heads)?, small(of_blocks)?);
    let source = checkpoint.weights.source();
    let names = names(checkpoint, 0, blocks);
    let output = checkpoint.weights.require(&format!("{}.weight", names.output))?;
    let place = format!("shape of tensor {}", output.name);
    let [vocabulary, width] = output.shape[..] else {
        return Err(ModelError::config(source, place, "two dimensions", output.shape.len()));
    };
    let (vocabulary, width) = (count(source, &place, vocabulary)?, count(source, &place, width)?);
    let kind = HeadKind::Medusa { heads, blocks };
    let head = DraftHead { target_layers: Vec::new(), target_width: width, draft_vocabulary: vocabulary, kind };
    Ok(Plan { spec: spec(head), layout: layout::HUGGING_FACE })
}

/// The spec of Medusa heads, most of whose fields are placeholders, since the heads are not a network with layers.
fn spec(head: DraftHead) -> Spec {
    let rotation = Rotation {
        frequencies: Vec::new(),
        pairing: Pairing::Halves,
        magnitude: 1.0,
        base: 1.0,
        scaling: Scaling::None,
        by_length: None,
    };
    Spec {
        vocabulary: head.draft_vocabulary,
        width: head.target_width,
        embedding_width: head.target_width,
        head_dim: 32,
        ffn_width: head.target_width,
        context_max: CONTEXT,
        positions: Positions::Rope(vec![rotation]),
        draft_head: Some(head),
        ..Spec::plain("medusa")
    }
}

/// The names of a head's matrices, without `.weight`.
struct Names {
    blocks: Vec<String>,
    output: String,
}

fn names(checkpoint: &Checkpoint, head: usize, blocks: usize) -> Names {
    let has = |name: &str| checkpoint.weights.get(&format!("{name}.weight")).is_some();
    if has("lm_heads.0") {
        let block = |block: usize| format!("blocks.{head}.layers.{block}");
        return Names { blocks: (0..blocks).map(block).collect(), output: format!("lm_heads.{head}") };
    }
    let prefix = if has(&format!("medusa_head.0.{blocks}")) { "medusa_head." } else { "" };
    let block = |block: usize| format!("{prefix}{head}.{block}.linear");
    Names { blocks: (0..blocks).map(block).collect(), output: format!("{prefix}{head}.{blocks}") }
}

/// Describes the heads.
///
/// # Errors
/// A tensor is missing, contradicts the configuration, or holds numbers that are not finite.
pub(super) fn read(checkpoint: &Checkpoint, spec: &Spec) -> Result<Vec<Head<Unpacked>>, ModelError> {
    let Some(DraftHead { kind: HeadKind::Medusa { heads, blocks }, .. }) = spec.draft_head else {
        unreachable!("not Medusa's: {spec:?}")
    };
    let tensors = Tensors::new(&checkpoint.weights, None);
    let (width, vocabulary) = (spec.width, spec.draft_head.as_ref().map_or(0, |head| head.draft_vocabulary));
    let mut all = Vec::with_capacity(heads);
    for head in 0..heads {
        let names = names(checkpoint, head, blocks);
        let block = |name: &String| tensors.linear(name, width, width, Bias::IfThere);
        let blocks = names.blocks.iter().map(block).collect::<Result<_, _>>()?;
        all.push(Head { blocks, output: tensors.linear(&names.output, width, vocabulary, Bias::None)? });
    }
    tensors.check_all_finite()?;
    Ok(all)
}
