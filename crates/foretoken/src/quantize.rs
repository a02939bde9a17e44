//! Converts a model to a GGUF file with another weight type, which llama.cpp reads too.
//!
//! The source is a GGUF file, whose keys are copied, or a Hugging Face directory, which is converted to GGUF's names
//! and keys (the network in `model/src/export.rs`, the vocabulary in `text`). Tensors are converted one after the
//! other, in slabs of rows that all threads work on, so memory does not grow with the model. Importance matrices are
//! read from files and not measured; the type of a single tensor cannot be chosen.

mod importance;
mod kinds;
mod rows;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foretoken_kernels::Pool;
use foretoken_model::export::Exported;
use foretoken_weights::Dtype;
use foretoken_weights::gguf::{Metadata, TensorInfo, Writer};

use crate::{Error, OutputFile};
use importance::Importance;
pub use kinds::{Mixture, mixture};
use kinds::{Network, TypeChoice};
use rows::{Conversion, Problem};
use source::Source;

/// A model to be quantized: its tensors, and the type that each gets.
pub struct Quantization {
    input: PathBuf,
    tensors: Vec<Exported>,
    plan: Vec<TypeChoice>,
    metadata: Metadata,
    importance: Option<Importance>,
    /// Notes for users before the conversion, one line each.
    pub notes: Vec<String>,
}

/// An event while a model is quantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantizing {
    /// The number of tensors that are written.
    Written(usize),
    /// A note for users, in one line.
    Note(String),
}

impl Quantization {
    /// Opens a model (a `.gguf` file or a Hugging Face directory) and decides the type of each tensor. `imatrix`: a
    /// file of llama-imatrix, by whose importances blocks are quantized.
    ///
    /// # Errors
    /// A file cannot be read, the model cannot be converted to GGUF, or the importances are not of this model.
    pub fn plan(input: &Path, mixture: Mixture, imatrix: Option<&Path>) -> Result<Self, Error> {
        let Source { mut metadata, tensors, notes } = Source::open(input)?;
        let importance = imatrix.map(Importance::open).transpose()?;
        importance.as_ref().map_or(Ok(()), |importance| importance.check(input, &tensors))?;
        let names = tensors.iter().map(|tensor| tensor.name.as_str());
        let network = Network::new(names, &metadata, importance.is_some());
        let choose = |tensor: &Exported| mixture.of_tensor(&tensor.name, &tensor.shape, &network);
        let plan: Vec<TypeChoice> = tensors.iter().map(choose).collect();
        metadata.set("general.file_type", mixture.file_type());
        metadata.set("general.quantization_version", 2u32);
        importance.iter().for_each(|importance| importance.set_keys(&mut metadata));
        let mut notes: Vec<String> = notes.into_iter().map(|note| format!("note: {note}")).collect();
        notes.extend(notes_on(&tensors, &plan));
        notes.extend(importance.iter().filter_map(|importance| importance.note(&tensors, &plan)));
        Ok(Self { input: input.to_path_buf(), tensors, plan, metadata, importance, notes })
    }

    /// The number of tensors.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Writes the file, and reports each tensor that is written; stops if `keep_going` returns false. Returns the file,
    /// which has to be finished to get its name; `None` if it was stopped. `name`: the file, for messages.
    ///
    /// # Errors
    /// The file cannot be written, or a row to be quantized holds numbers that are not finite or too large.
    pub fn write(
        self,
        output: OutputFile,
        name: &Path,
        threads: usize,
        keep_going: &dyn Fn() -> bool,
        report: &mut dyn FnMut(Quantizing),
    ) -> Result<Option<OutputFile>, Error> {
        let pool = Pool::new(threads);
        if pool.threads() < threads {
            let found = pool.threads();
            report(Quantizing::Note(format!("threads: expected {threads}, found {found}: the system gives no more")));
        }
        let mut writer = self.begin(output, name)?;
        for (i, (tensor, choice)) in self.tensors.iter().zip(&self.plan).enumerate() {
            let importance = self.importance.as_ref().and_then(|all| all.of(tensor));
            let conversion = Conversion { dtype: choice.dtype, importance };
            let put = &mut |bytes: &[u8]| writer.append(bytes);
            let saturated = match rows::convert(tensor, conversion, &pool, &|| !keep_going(), put) {
                Ok(saturated) => saturated,
                Err(Problem::Stopped) => return Ok(None),
                Err(Problem::Write(error)) => return Err(error.into()),
                Err(Problem::NotFinite { row }) => {
                    let expected = "expected finite numbers that fit to quantize, found others";
                    let place = format!("{}: tensor {}: row {row}", self.input.display(), tensor.name);
                    return Err(Error::input(format!("{place}: {expected}")));
                }
            };
            if saturated > 0 {
                let note = format!("{}: {saturated} numbers beyond f16 became its greatest", tensor.name);
                report(Quantizing::Note(note));
            }
            tensor.release();
            report(Quantizing::Written(i + 1));
        }
        Ok(Some(writer.finish()?))
    }

    /// Writes the header of the file.
    fn begin(&self, output: OutputFile, name: &Path) -> Result<Writer<OutputFile>, Error> {
        let info = |(tensor, choice): (&Exported, &TypeChoice)| TensorInfo {
            name: tensor.name.clone(),
            dtype: choice.dtype,
            shape: tensor.shape.clone(),
        };
        let infos: Vec<TensorInfo> = self.tensors.iter().zip(&self.plan).map(info).collect();
        Ok(Writer::new(output, &name.display().to_string(), &self.metadata, &infos)?)
    }
}

/// Notes for users about tensors that got another type than the mixture's, and about those that are quantized twice.
fn notes_on(tensors: &[Exported], plan: &[TypeChoice]) -> Vec<String> {
    let mut fallbacks: BTreeMap<(usize, &str, &str), Vec<&str>> = BTreeMap::new();
    let mut twice = Vec::new();
    for (tensor, choice) in tensors.iter().zip(plan) {
        let (from, to) = (tensor.dtype(), choice.dtype);
        if matches!(from, Dtype::Quantized(_)) && matches!(to, Dtype::Quantized(_)) && from != to {
            twice.push((&tensor.name, from));
        }
        if choice.by_rules != to {
            let key = (tensor.columns(), choice.by_rules.name(), to.name());
            fallbacks.entry(key).or_default().push(&tensor.name);
        }
    }
    let mut lines = Vec::new();
    if let Some((name, from)) = twice.first() {
        let count = twice.len();
        lines.push(format!("warning: {count} tensors are quantized already and lose twice, as {name} ({from})"));
    }
    for ((columns, by_rules, to), names) in fallbacks {
        let count = names.len();
        lines.push(format!(
            "note: rows of {columns} are no whole blocks of {by_rules}: {to} for {count} tensors, as {}",
            names[0]
        ));
    }
    lines
}
