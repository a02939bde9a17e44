//! The families that can be run: one file each, and one line of the register here (`FAMILIES`).
//!
//! Everything that is particular to a format stops in a family's file: names, permuted rows, transposed matrices, fused
//! tensors, scaling of frequencies. A family says what its network computes (a [`Spec`]) and where its tensors lie (a
//! `Layout`); most say it as changes to what many have in common (`json.rs`, `gguf.rs`, `layout.rs`, `rope.rs`). What
//! comes out is the same for all: a network whose matrices are described and not yet read, and, the way back, the keys
//! and tensors of a GGUF file. How a family is added: `docs/adding-a-family.md`. Left out: packing, which is the
//! backend's.

use crate::backend::{Backend, Loaded};
use crate::capacity::Capacity;
use crate::checkpoint::{Checkpoint, Config, JsonConfig};
use crate::collected::{Collected, Exported};
use crate::error::ModelError;
use crate::lent::Lent;
use crate::linear::Unpacked;
use crate::network::{Network, Progress};
use crate::options::Options;
use crate::quantization::{self, Quantization};
use crate::spec::{DraftHead, HeadKind, Spec};
use gguf::Gguf;
pub use layout::Layout;
use tensors::Tensors;
use write::{Keys, Writing, Written};

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
mod rope;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder;
mod tensors;
mod unused;
mod write;

/// The register, the most used first.
const FAMILIES: &[&[Family]] = &[
    llama::FAMILIES,
    gpt2::FAMILIES,
    qwen::FAMILIES,
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
    eagle3::FAMILIES,
];

/// What is known of a family.
struct Family {
    /// Its name in `config.json`, as `model_type` spells it, and what such a file says.
    json: Option<(&'static str, OfJson)>,
    /// Its name in GGUF files, as `general.architecture` spells it, and what such a file says.
    gguf: Option<(&'static str, OfGguf)>,
    /// How its checkpoints are written as GGUF files; none: no such file can say them.
    written: Option<Written>,
}

type OfJson = fn(&JsonConfig) -> Result<Plan, ModelError>;
type OfGguf = fn(Gguf<'_>) -> Result<Plan, ModelError>;

impl Family {
    /// A family by its names in the two formats, of which no file is written.
    const fn new(json: Option<(&'static str, OfJson)>, gguf: Option<(&'static str, OfGguf)>) -> Self {
        Self { json, gguf, written: None }
    }

    /// The same, whose checkpoints are written as files of an architecture, with keys that only it has.
    const fn written(self, architecture: &'static str, keys: fn(&mut Writing<'_>) -> Result<(), ModelError>) -> Self {
        Self { written: Some(Written { architecture, keys }), ..self }
    }

    fn model_type(&self) -> Option<&'static str> {
        self.json.map(|(name, _)| name)
    }

    fn architecture(&self) -> Option<&'static str> {
        self.gguf.map(|(name, _)| name)
    }
}

/// What a configuration says: what the network computes, and where its tensors lie. Planned once, when a model is
/// opened; what was found is what is loaded.
#[derive(Clone)]
pub struct Plan {
    /// What is computed; where that depends on the longest text ([`Options::context`](crate::Options::context)), for
    /// the context that the network was made for.
    pub spec: Spec,
    /// Where its tensors lie.
    pub layout: Layout,
}

impl Plan {
    /// Describes the network for texts of up to so many tokens, as every backend takes it; of its tensors only vectors
    /// are read.
    ///
    /// # Errors
    /// A tensor is missing, contradicts the configuration, or would have to be read for the network to be that of the
    /// file.
    pub fn read(self, checkpoint: &Checkpoint, context: Option<usize>) -> Result<Network<Unpacked>, ModelError> {
        if let Some(DraftHead { draft_vocabulary, .. }) = &self.spec.draft_head {
            let found = format!("a draft head of {draft_vocabulary} tokens, which writes nothing without its target");
            return Err(ModelError::config(config_file(checkpoint), "architecture", "a model", found));
        }
        self.read_with(checkpoint, context, None)
    }

    /// Describes a draft head of layers, as [`Plan::read`] does other networks: for a target that is loaded, whose
    /// embedding and output rows it takes where it has none of its own.
    ///
    /// # Errors
    /// As [`Plan::read`]; it is no draft head, or one of another target: the field is named that differs.
    pub fn read_head(
        mut self,
        checkpoint: &Checkpoint,
        (target, lent): (&Capacity, &Lent),
        context: Option<usize>,
    ) -> Result<Network<Unpacked>, ModelError> {
        self.fit(config_file(checkpoint), target)?;
        self.read_with(checkpoint, context, Some(lent))
    }

    /// Loads a draft head of any kind for a target that is loaded.
    ///
    /// # Errors
    /// As [`Plan::read_head`] and [`Backend::load`].
    pub fn load_head(
        mut self,
        checkpoint: &Checkpoint,
        (target, lent): (&Capacity, &Lent),
        backend: &dyn Backend,
        options: Options,
        progress: Progress<'_>,
    ) -> Result<Loaded, ModelError> {
        self.fit(config_file(checkpoint), target)?;
        let is_medusa = |head: &DraftHead| matches!(head.kind, HeadKind::Medusa { .. });
        if self.spec.draft_head.as_ref().is_some_and(is_medusa) {
            let heads = medusa::read(checkpoint, &self.spec)?;
            let last = target.hidden.layers - 1;
            return crate::medusa::load(checkpoint, (self.spec, heads), (last, lent), options, progress);
        }
        let network = self.read_with(checkpoint, options.context, Some(lent))?.with_tokens(options.tokens);
        backend.load(network, options, progress)
    }

    /// Checks a draft head against its target, and names the layers that it reads.
    fn fit(&mut self, file: &str, target: &Capacity) -> Result<(), ModelError> {
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
        lent: Option<&Lent>,
    ) -> Result<Network<Unpacked>, ModelError> {
        let Self { spec, layout } = self.fixed(context);
        checks::check_spec(config_file(checkpoint), &spec)?;
        let quantization = quantization_of(checkpoint)?;
        let tensors = Tensors::new(&checkpoint.weights, quantization);
        let mut network = layout.read(spec, &tensors, lent)?;
        if network.spec.draft_head.is_some() {
            // Small, and what it says is never looked at by anybody: a number that is none would only make it useless.
            tensors.check_all_finite()?;
        }
        network.name.clone_from(&checkpoint.name);
        network.left_out = unused::told(checkpoint, (&network.spec, &layout), &tensors.into_read())?;
        Ok(network)
    }

    /// The same for texts of up to so many tokens.
    fn fixed(mut self, context: Option<usize>) -> Self {
        if let Some(context) = context {
            rope::fix(&mut self.spec, context);
        }
        self
    }
}

fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().copied().flatten()
}

/// Models of images and text, whose text is a family of its own under `text_config`. Only their text is run.
const WRAPPERS: [&str; 3] = ["gemma3", "gemma4", "mistral3"];

/// The file of a checkpoint's configuration, for messages.
fn config_file(checkpoint: &Checkpoint) -> &str {
    match &checkpoint.config {
        Config::Json(config) => config.file(),
        Config::Gguf(_) => &checkpoint.name,
    }
}

/// What a checkpoint's configuration says, by the family that it names.
fn plan_with_family(checkpoint: &Checkpoint) -> Result<(&'static Family, Plan), ModelError> {
    let (family, plan) = plan_of(checkpoint)?;
    checks::check_spec(config_file(checkpoint), &plan.spec)?;
    Ok((family, plan))
}

fn plan_of(checkpoint: &Checkpoint) -> Result<(&'static Family, Plan), ModelError> {
    match &checkpoint.config {
        Config::Json(config) if medusa::is(config)? => Ok((medusa::FAMILY, medusa::of_json(config, checkpoint)?)),
        Config::Json(config) => plan_of_json(config),
        Config::Gguf(metadata) => {
            const KEY: &str = "general.architecture";
            let name = metadata.str(KEY)?;
            let (family, of_gguf) = reader(name).ok_or_else(|| {
                ModelError::config(&checkpoint.name, KEY, one_of(Family::architecture), format!("{name:?}"))
            })?;
            let gguf = Gguf { metadata, weights: &checkpoint.weights };
            let plan = of_gguf(gguf)?;
            match gguf.optional_count(&plan.spec, "expert_count")? {
                Some(experts) if plan.spec.experts.is_none() => {
                    Err(gguf.refuse(&gguf.key(&plan.spec, "expert_count"), "0 (a dense network)", experts))
                }
                _ => Ok((family, plan)),
            }
        }
    }
}

/// Who reads files of an architecture.
fn reader(architecture: &str) -> Option<(&'static Family, OfGguf)> {
    families().find_map(|family| Some((family, family.gguf.filter(|(known, _)| *known == architecture)?.1)))
}

/// Who reads configurations of a name.
fn reader_of_json(name: &str) -> Option<OfJson> {
    families().find_map(|family| Some(family.json.filter(|(known, _)| *known == name)?.1))
}

fn plan_of_json(config: &JsonConfig) -> Result<(&'static Family, Plan), ModelError> {
    if eagle3::is(config) {
        quantization::of(config)?;
        return Ok((&eagle3::FAMILIES[0], eagle3::of_json(config)?));
    }
    const FIELD: &str = "model_type";
    let expected = || one_of(Family::model_type);
    let name = config.optional_str(FIELD)?.ok_or_else(|| config.refuse(FIELD, expected(), "nothing"))?;
    if let Some(text) = text_config(config)? {
        let (family, Plan { spec, layout }) = plan_of_json(&text)?;
        let prefixes = &["model.language_model.", "language_model.model."];
        let heads = &["lm_head", "language_model.lm_head"];
        return Ok((family, Plan { spec, layout: Layout { prefixes, heads, ..layout } }));
    }
    let found = families().find_map(|family| Some((family, family.json.filter(|(known, _)| *known == name)?.1)));
    let (family, of_json) = found.ok_or_else(|| config.refuse(FIELD, expected(), format!("{name:?}")))?;
    quantization::of(config)?;
    Ok((family, of_json(config)?))
}

/// The configuration of the text of a model of images and text.
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

/// How the matrices of a checkpoint are packed that are not floats. Of a model of images and text either configuration
/// says it.
fn quantization_of(checkpoint: &Checkpoint) -> Result<Option<Quantization>, ModelError> {
    let Config::Json(config) = &checkpoint.config else { return Ok(None) };
    match (quantization::of(config)?, config.optional_object("text_config")) {
        (None, Ok(Some(text))) => quantization::of(&text),
        (found, _) => Ok(found),
    }
}

/// Refuses a checkpoint that is not one of floats.
fn refuse_quantized(config: &JsonConfig) -> Result<(), ModelError> {
    let Some(how) = config.optional_object("quantization_config")? else { return Ok(()) };
    let method = how.optional_str("quant_method")?.unwrap_or("a quantization");
    Err(config.refuse("quantization_config", "nothing (only checkpoints of floats are written)", method))
}

/// The names of the register, for messages.
fn one_of(name: fn(&Family) -> Option<&'static str>) -> String {
    format!("one of {}", families().filter_map(name).collect::<Vec<_>>().join(", "))
}

/// What a checkpoint's configuration says, without touching its tensors.
///
/// # Errors
/// The family is unknown, or a field is missing, impossible or asks for something that is not implemented.
pub fn plan(checkpoint: &Checkpoint) -> Result<Plan, ModelError> {
    Ok(plan_with_family(checkpoint)?.1)
}

/// Describes a whole network, as [`plan`] and [`Plan::read`].
///
/// # Errors
/// As the two.
pub fn read(checkpoint: &Checkpoint, context: Option<usize>) -> Result<Network<Unpacked>, ModelError> {
    plan(checkpoint)?.read(checkpoint, context)
}

/// What is told of a Hugging Face checkpoint in GGUF's words besides its tensors.
pub(crate) struct Told {
    /// Keys of the file.
    pub(crate) keys: Keys,
    /// Lines about what the file says otherwise.
    pub(crate) notes: Vec<String>,
    /// Tensors that the network does not use.
    pub(crate) left_out: Vec<String>,
}

/// Says a Hugging Face checkpoint in GGUF's words; its tensors are added to those collected.
///
/// # Errors
/// As [`read`], the checkpoint is quantized, or GGUF has no word for something.
///
/// # Panics
/// If the checkpoint is a GGUF file.
pub(crate) fn export(checkpoint: &Checkpoint, collected: &mut Collected<'_>) -> Result<Told, ModelError> {
    let Config::Json(config) = &checkpoint.config else { panic!("export: {} is GGUF already", checkpoint.name) };
    refuse_quantized(config)?;
    let text = text_config(config)?;
    let config = text.as_ref().unwrap_or(config);
    refuse_quantized(config)?;
    let (family, plan) = plan_with_family(checkpoint)?;
    let Some(written) = &family.written else {
        let written = families().filter(|family| family.written.is_some()).filter_map(Family::model_type);
        let expected = format!("a family that can be written as GGUF: {}", written.collect::<Vec<_>>().join(", "));
        let found = config.optional_str("model_type")?.unwrap_or_default();
        return Err(config.refuse("model_type", expected, found));
    };
    let architecture = written.architecture;
    let (_, of_gguf) = reader(architecture).unwrap_or_else(|| panic!("export: nobody reads {architecture}"));
    // Of some networks short texts are rotated otherwise than long ones: the file has to say both.
    let short = Some(1);
    Writing::new(config, &plan.clone().fixed(short), written)?.read_back(of_gguf, short)?;
    let writing = Writing::new(config, &plan, written)?;
    let file = writing.read_back(of_gguf, None)?;
    let interleaved = write::interleaved(&plan.spec, &file.spec);
    plan.layout.write(&file.layout, config, &writing.spec, interleaved, collected)?;
    collected.tensors.extend(writing.tensors.into_iter().map(Exported::floats));
    let left_out = unused::told(checkpoint, (&plan.spec, &plan.layout), &collected.used)?;
    Ok(Told { keys: writing.keys, notes: writing.notes, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_comes_twice() {
        for name in [Family::model_type, Family::architecture] {
            let mut names: Vec<_> = families().filter_map(name).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        }
    }
}
