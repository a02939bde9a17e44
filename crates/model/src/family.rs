//! The families that can be run: one file each, and one line of the register here (`FAMILIES`).
//!
//! A family's file handles everything that is particular to a format: names, permuted rows, transposed matrices, fused
//! tensors, scaling of frequencies. A family describes what its network computes (a [`Spec`]) and how its tensors are
//! stored (a `Layout`); most do so as changes to shared defaults (`json.rs`, `gguf.rs`, `layout.rs`, `rope.rs`). The
//! result is the same for all: a network whose matrices are described but not yet read, or, for export, the keys and
//! tensors of a GGUF file. Backends pack the matrices. `docs/adding-a-family.md` explains how to add a family.

use crate::backend::{Backend, Loaded};
use crate::capacity::Capacity;
use crate::checkpoint::{Checkpoint, Config, JsonConfig};
use crate::collected::{Collected, Exported};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::{Network, Progress};
use crate::options::Options;
use crate::quantization;
use crate::quantized::Quantization;
use crate::shared_embeddings::SharedEmbeddings;
use crate::spec::{DraftHead, HeadKind, Spec};
use gguf::Gguf;
pub use layout::Layout;
use tensors::Tensors;
use write::{GgufDescription, GgufExport, Keys};

mod alibi;
mod arcee;
mod baichuan;
mod bloom;
mod checks;
mod cohere;
mod eagle3;
mod ernie;
mod experts;
mod falcon;
mod gemma;
mod gemma4;
mod gguf;
mod glm;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod hunyuan;
mod internlm2;
mod json;
mod layout;
mod llama;
mod medusa;
mod mistral;
mod olmo;
mod opt;
mod phi;
mod qwen;
mod qwen1;
mod rope;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder;
mod t5;
mod tensors;
mod unused;
mod write;

/// All families, the most widely used first.
const FAMILIES: &[&[Family]] = &[
    llama::FAMILIES,
    gpt2::FAMILIES,
    qwen::FAMILIES,
    qwen1::FAMILIES,
    mistral::FAMILIES,
    gemma::FAMILIES,
    gemma4::FAMILIES,
    phi::FAMILIES,
    gpt_neox::FAMILIES,
    gptj::FAMILIES,
    starcoder::FAMILIES,
    opt::FAMILIES,
    bloom::FAMILIES,
    falcon::FAMILIES,
    stablelm::FAMILIES,
    olmo::FAMILIES,
    glm::FAMILIES,
    glm4_moe::FAMILIES,
    smollm3::FAMILIES,
    granite::FAMILIES,
    cohere::FAMILIES,
    internlm2::FAMILIES,
    baichuan::FAMILIES,
    arcee::FAMILIES,
    ernie::FAMILIES,
    seed_oss::FAMILIES,
    hunyuan::FAMILIES,
    gpt_oss::FAMILIES,
    t5::FAMILIES,
    eagle3::FAMILIES,
];

/// A model family: its names, its readers and its export.
struct Family {
    /// The name in `config.json`, as `model_type` spells it, and the reader of such a file.
    json: Option<(&'static str, ReadJson)>,
    /// The name in GGUF files, as `general.architecture` spells it, and the reader of such a file.
    gguf: Option<(&'static str, ReadGguf)>,
    /// How its checkpoints are written as GGUF files; `None` if no such file can express them.
    export: Option<GgufExport>,
}

type ReadJson = fn(&JsonConfig) -> Result<Plan, ModelError>;
type ReadGguf = fn(Gguf<'_>) -> Result<Plan, ModelError>;

impl Family {
    /// A family by its names in the two formats, without export.
    const fn new(json: Option<(&'static str, ReadJson)>, gguf: Option<(&'static str, ReadGguf)>) -> Self {
        Self { json, gguf, export: None }
    }

    /// Adds an export: to GGUF files of this architecture, with the keys that only it has.
    const fn exported_as(
        self,
        architecture: &'static str,
        keys: fn(&mut GgufDescription<'_>) -> Result<(), ModelError>,
    ) -> Self {
        Self { export: Some(GgufExport { architecture, keys }), ..self }
    }

    fn model_type(&self) -> Option<&'static str> {
        self.json.map(|(name, _)| name)
    }

    fn architecture(&self) -> Option<&'static str> {
        self.gguf.map(|(name, _)| name)
    }
}

/// What a network computes and how its tensors are stored, according to its configuration. It is made once, when a
/// model is opened, and loading uses it.
#[derive(Clone)]
pub struct Plan {
    /// What is computed. If that depends on the longest sequence ([`Options::context`](crate::Options::context)), it is
    /// for the context that the network was trained with.
    pub spec: Spec,
    /// How the tensors are stored.
    pub layout: Layout,
}

impl Plan {
    /// Describes the network for every backend, for sequences of up to `context` tokens; only vectors of its tensors
    /// are read.
    ///
    /// # Errors
    /// A tensor is missing, contradicts the configuration, or is not read although without it the network would be a
    /// different one.
    pub fn read(self, checkpoint: &Checkpoint, context: Option<usize>) -> Result<Network<Unpacked>, ModelError> {
        if let Some(DraftHead { draft_vocabulary, .. }) = &self.spec.draft_head {
            let found = format!("a draft head of {draft_vocabulary} tokens, which writes nothing without its target");
            return Err(ModelError::config(config_file(checkpoint), "architecture", "a model", found));
        }
        self.read_with(checkpoint, context, None)
    }

    /// Describes a draft head that has layers for a loaded target, as [`Plan::read`] describes other networks. A head
    /// without an embedding or output rows of its own shares the target's.
    ///
    /// # Errors
    /// As [`Plan::read`]; or if it is not a draft head, or belongs to another target: then the error names the field
    /// that differs.
    pub fn read_head(
        mut self,
        checkpoint: &Checkpoint,
        (target, shared): (&Capacity, &SharedEmbeddings),
        context: Option<usize>,
    ) -> Result<Network<Unpacked>, ModelError> {
        self.check_target(config_file(checkpoint), target)?;
        self.read_with(checkpoint, context, Some(shared))
    }

    /// Loads a draft head of any kind for a loaded target.
    ///
    /// # Errors
    /// As [`Plan::read_head`] and [`Backend::load`].
    pub fn load_head(
        mut self,
        checkpoint: &Checkpoint,
        (target, shared): (&Capacity, &SharedEmbeddings),
        backend: &dyn Backend,
        options: Options,
        progress: Progress<'_>,
    ) -> Result<Loaded, ModelError> {
        self.check_target(config_file(checkpoint), target)?;
        let is_medusa = |head: &DraftHead| matches!(head.kind, HeadKind::Medusa { .. });
        if self.spec.draft_head.as_ref().is_some_and(is_medusa) {
            let heads = medusa::read(checkpoint, &self.spec)?;
            let last = target.hidden.layers - 1;
            return crate::medusa::load(checkpoint, (self.spec, heads), (last, shared), options, progress);
        }
        let network = self.read_with(checkpoint, options.context, Some(shared))?.with_tokens(options.tokens);
        backend.load(network, options, progress)
    }

    /// Checks a draft head against its target, and fills in the layers that it reads.
    fn check_target(&mut self, file: &str, target: &Capacity) -> Result<(), ModelError> {
        let vocabulary = self.spec.vocabulary;
        let Some(head) = &mut self.spec.draft_head else {
            return Err(ModelError::config(file, "architecture", "a draft head", self.spec.family));
        };
        if vocabulary < target.vocabulary {
            let expected = format!("at least {} (the target's)", target.vocabulary);
            return Err(ModelError::config(file, "vocabulary", expected, vocabulary));
        }
        if head.target_width != target.hidden.width {
            let expected = format!("{} (the target's width)", target.hidden.width);
            return Err(ModelError::config(file, "target_hidden_size", expected, head.target_width));
        }
        let layers = target.hidden.layers;
        let chosen = head.layers_of(layers).filter(|chosen| chosen.iter().all(|layer| *layer < layers));
        head.target_layers = chosen.ok_or_else(|| {
            let named: Vec<usize> = head.target_layers.iter().map(|layer| layer + 1).collect();
            let found = if named.is_empty() { "layers 2, n / 2 and n - 3".to_string() } else { format!("{named:?}") };
            ModelError::config(file, "layers of the target", format!("numbers up to {layers} (it has so many)"), found)
        })?;
        Ok(())
    }

    fn read_with(
        self,
        checkpoint: &Checkpoint,
        context: Option<usize>,
        shared: Option<&SharedEmbeddings>,
    ) -> Result<Network<Unpacked>, ModelError> {
        let Self { spec, layout } = self.for_context(context);
        checks::check_spec(config_file(checkpoint), &spec)?;
        let quantization = quantization_of(checkpoint)?;
        let tensors = Tensors::new(&checkpoint.weights, quantization);
        let mut network = layout.read(spec, &tensors, shared)?;
        if network.spec.draft_head.is_some() {
            // The draft head is small, and NaN in its weights would show only as drafts that are never accepted.
            tensors.check_all_finite()?;
        }
        network.name.clone_from(&checkpoint.name);
        network.left_out = unused::check(checkpoint, (&network.spec, &layout), &tensors.into_read())?;
        Ok(network)
    }

    /// Sets what depends on the longest sequence, for sequences of up to `context` tokens.
    fn for_context(mut self, context: Option<usize>) -> Self {
        if let Some(context) = context {
            rope::set_context(&mut self.spec, context);
        }
        self
    }
}

fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().flatten()
}

/// Multimodal models, whose language model is a family of its own under `text_config`. Only the language model is run.
const WRAPPERS: [&str; 3] = ["gemma3", "gemma4", "mistral3"];

/// The file of a checkpoint's configuration, for messages.
fn config_file(checkpoint: &Checkpoint) -> &str {
    match &checkpoint.config {
        Config::Json(config) => config.file(),
        Config::Gguf(_) => &checkpoint.name,
    }
}

/// The plan of a checkpoint, and the family that its configuration names.
fn plan_with_family(checkpoint: &Checkpoint) -> Result<(&'static Family, Plan), ModelError> {
    let (family, plan) = plan_of(checkpoint)?;
    checks::check_spec(config_file(checkpoint), &plan.spec)?;
    Ok((family, plan))
}

fn plan_of(checkpoint: &Checkpoint) -> Result<(&'static Family, Plan), ModelError> {
    match &checkpoint.config {
        Config::Json(config) if medusa::is(config)? => Ok((medusa::FAMILY, medusa::from_json(config, checkpoint)?)),
        Config::Json(config) => plan_from_json(config),
        Config::Gguf(metadata) => {
            const KEY: &str = "general.architecture";
            let name = metadata.str(KEY)?;
            let (family, from_gguf) = gguf_reader(name).ok_or_else(|| {
                ModelError::config(&checkpoint.name, KEY, one_of(Family::architecture), format!("{name:?}"))
            })?;
            let gguf = Gguf { metadata, weights: &checkpoint.weights };
            let plan = from_gguf(gguf)?;
            match gguf.optional_count(&plan.spec, "expert_count")? {
                Some(experts) if plan.spec.experts.is_none() => {
                    Err(gguf.refuse(&gguf.key(&plan.spec, "expert_count"), "0 (a dense network)", experts))
                }
                _ => Ok((family, plan)),
            }
        }
    }
}

/// The family and the reader of GGUF files of an architecture.
fn gguf_reader(architecture: &str) -> Option<(&'static Family, ReadGguf)> {
    families().find_map(|family| Some((family, family.gguf.filter(|(known, _)| *known == architecture)?.1)))
}

/// The reader of configurations of a `model_type`.
fn json_reader(name: &str) -> Option<ReadJson> {
    families().find_map(|family| Some(family.json.filter(|(known, _)| *known == name)?.1))
}

fn plan_from_json(config: &JsonConfig) -> Result<(&'static Family, Plan), ModelError> {
    if eagle3::is(config) {
        quantization::read(config)?;
        return Ok((&eagle3::FAMILIES[0], eagle3::from_json(config)?));
    }
    const FIELD: &str = "model_type";
    let expected = || one_of(Family::model_type);
    let name = config.optional_str(FIELD)?.ok_or_else(|| config.refuse(FIELD, expected(), "nothing"))?;
    if let Some(text) = text_config(config)? {
        let (family, Plan { spec, layout }) = plan_from_json(&text)?;
        let prefixes = &["model.language_model.", "language_model.model."];
        let heads = &["lm_head", "language_model.lm_head"];
        return Ok((family, Plan { spec, layout: Layout { prefixes, heads, ..layout } }));
    }
    let found = families().find_map(|family| Some((family, family.json.filter(|(known, _)| *known == name)?.1)));
    let (family, from_json) = found.ok_or_else(|| config.refuse(FIELD, expected(), format!("{name:?}")))?;
    quantization::read(config)?;
    Ok((family, from_json(config)?))
}

/// The configuration of the language model in a multimodal model.
fn text_config(config: &JsonConfig) -> Result<Option<JsonConfig>, ModelError> {
    let wraps = |config: &JsonConfig| {
        let name = config.optional_str("model_type")?;
        Ok::<bool, ModelError>(name.is_some_and(|name| WRAPPERS.contains(&name)))
    };
    if !wraps(config)? {
        return Ok(None);
    }
    let text = config.optional_object("text_config")?;
    match text.as_ref().map(wraps).transpose()? {
        Some(true) => Err(config.refuse("text_config.model_type", "a family of text", "another wrapper")),
        _ => Ok(text),
    }
}

/// How the quantized matrices of a checkpoint are packed. In a multimodal model either configuration may have the
/// field.
fn quantization_of(checkpoint: &Checkpoint) -> Result<Option<Quantization>, ModelError> {
    let Config::Json(config) = &checkpoint.config else { return Ok(None) };
    match (quantization::read(config)?, config.optional_object("text_config")) {
        (None, Ok(Some(text))) => quantization::read(&text),
        (found, _) => Ok(found),
    }
}

/// Refuses a quantized checkpoint.
fn refuse_quantized(config: &JsonConfig) -> Result<(), ModelError> {
    let Some(how) = config.optional_object("quantization_config")? else { return Ok(()) };
    let method = how.optional_str("quant_method")?.unwrap_or("a quantization");
    Err(config.refuse("quantization_config", "nothing (only checkpoints of floats are written)", method))
}

/// The names of all families, for messages.
fn one_of(name: fn(&Family) -> Option<&'static str>) -> String {
    format!("one of {}", families().filter_map(name).collect::<Vec<_>>().join(", "))
}

/// Makes the plan of a checkpoint from its configuration, without reading its tensors.
///
/// # Errors
/// The family is unknown, or a field is missing, impossible or asks for something that is not implemented.
pub fn plan(checkpoint: &Checkpoint) -> Result<Plan, ModelError> {
    Ok(plan_with_family(checkpoint)?.1)
}

/// Describes a whole network: [`plan`], then [`Plan::read`].
///
/// # Errors
/// As both functions.
pub fn read(checkpoint: &Checkpoint, context: Option<usize>) -> Result<Network<Unpacked>, ModelError> {
    plan(checkpoint)?.read(checkpoint, context)
}

/// What a Hugging Face checkpoint becomes in GGUF besides its tensors.
pub(crate) struct ExportNotes {
    /// Keys of the file.
    pub(crate) keys: Keys,
    /// Lines about the differences between the file and the checkpoint.
    pub(crate) notes: Vec<String>,
    /// Tensors that the network does not use.
    pub(crate) left_out: Vec<String>,
}

/// Describes a Hugging Face checkpoint as a GGUF file, and adds its tensors to those collected.
///
/// # Errors
/// As [`read`], or the checkpoint is quantized, or GGUF cannot express it.
///
/// # Panics
/// If the checkpoint is a GGUF file.
pub(crate) fn export(checkpoint: &Checkpoint, collected: &mut Collected<'_>) -> Result<ExportNotes, ModelError> {
    let Config::Json(config) = &checkpoint.config else { panic!("export: {} is GGUF already", checkpoint.name) };
    refuse_quantized(config)?;
    let text = text_config(config)?;
    let config = text.as_ref().unwrap_or(config);
    refuse_quantized(config)?;
    let (family, plan) = plan_with_family(checkpoint)?;
    let Some(export) = &family.export else {
        let written = families().filter(|family| family.export.is_some()).filter_map(Family::model_type);
        let expected = format!("a family that can be written as GGUF: {}", written.collect::<Vec<_>>().join(", "));
        let found = config.optional_str("model_type")?.unwrap_or_default();
        return Err(config.refuse("model_type", expected, found));
    };
    let architecture = export.architecture;
    let (_, from_gguf) = gguf_reader(architecture).unwrap_or_else(|| panic!("export: no family reads {architecture}"));
    // Some networks rotate short sequences otherwise than long ones: the file has to express both.
    let short = Some(1);
    GgufDescription::new(config, &plan.clone().for_context(short), export)?.read_back(from_gguf, short)?;
    let description = GgufDescription::new(config, &plan, export)?;
    let file = description.read_back(from_gguf, None)?;
    let interleaved = write::interleaved(&plan.spec, &file.spec);
    plan.layout.write(&file.layout, config, &description.spec, interleaved, collected)?;
    collected.tensors.extend(description.tensors.into_iter().map(Exported::floats));
    let left_out = unused::check(checkpoint, (&plan.spec, &plan.layout), &collected.used)?;
    Ok(ExportNotes { keys: description.keys, notes: description.notes, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_belongs_to_one_family() {
        for name in [Family::model_type, Family::architecture] {
            let mut names: Vec<_> = families().filter_map(name).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        }
    }
}
