//! `foretoken quantize`: a model made into a GGUF file of another type, which llama.cpp reads too.
//!
//! The source is a GGUF file, whose keys go over as they are, or a Hugging Face directory, which is said in GGUF's
//! words (`model/src/export.rs` the network, `text` the vocabulary). Tensors follow one after the other, in slabs of
//! rows that all threads work on, so memory does not grow with the model. Nothing has the final name before it is
//! whole. Left out: how importances are measured, and types that somebody picks for single tensors.

mod importance;
mod kinds;
mod rows;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use foretoken::OutputFile;
use foretoken_kernels::Pool;
use foretoken_model::export::Exported;
use foretoken_weights::Dtype;
use foretoken_weights::gguf::{Metadata, TensorInfo, Writer};

use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::output::OutputOptions;
use crate::{hub, progress, values};
use importance::Importance;
use kinds::{Choice, Mixture, Network};
use rows::Wanted;
use source::Source;

const AFTER_HELP: &str = "\
TYPE: f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl,
iq4_xs, q3_k_l, q3_k_m, q3_k_s or q2_k; q5_k, q4_k and q3_k stand for the _m ones.

Matrices become the type; vectors, norms and tables of positions stay f32. As in llama.cpp, the head
(output.weight, or token_embd.weight where there is no other) is kept in Q6_K with all types of
fewer bits, and mixtures (_s, _m, _l, q2_k, iq4_*) give attn_v, attn_output and ffn_down more bits
in some layers. Rows that are no whole blocks of 256 take the type of 32 that is next: Q8_0 for
Q6_K, Q5_1 for Q5_K, Q5_0 for Q4_K, IQ4_NL for the others; or f16 if even that does not fit. A note
says so.

An importance matrix is what llama-imatrix writes about this model (imatrix.gguf, or the older
imatrix.dat): the squares of what each column is multiplied with. It makes types below q8_0 better.";

/// Options of `foretoken quantize`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Quantization")]
#[command(after_help = AFTER_HELP)]
pub struct Quantize {
    /// The model: a .gguf file, or a directory of Hugging Face's of a family that GGUF knows, in floats; or a name of
    /// the hub
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The .gguf file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The type of matrices, as q8_0 or q4_k_m (all of them: below)
    #[arg(long = "type", value_name = "TYPE", value_parser = kinds::mixture)]
    kind: Mixture,
    /// Quantize by the importances of columns in this file of llama-imatrix
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Threads [default: one a core]
    #[arg(short, long, value_name = "N", value_parser = values::threads, allow_negative_numbers = true)]
    threads: Option<usize>,
    #[command(flatten)]
    writing: OutputOptions,
}

impl Quantize {
    /// Runs the command.
    ///
    /// # Errors
    /// The source cannot be read or said in GGUF, OUT is there or cannot be written, or somebody pressed Ctrl-C.
    pub fn run(&self) -> Result<(), Failure> {
        let input = hub::resolved(&self.input)?;
        if !input.exists() {
            let input = input.display();
            return Err(Failure::Other(format!("{input}: expected a directory or a .gguf file, found nothing")));
        }
        let interrupts = Interrupts::listen();
        let read: Vec<PathBuf> = std::iter::once(&input).chain(&self.imatrix).cloned().collect();
        let output = self.writing.begin(&self.output, &read)?;
        let source = Source::open(&input)?;
        let importance = self.imatrix.as_deref().map(Importance::open).transpose()?;
        importance.as_ref().map_or(Ok(()), |importance| importance.check(&input, &source.tensors))?;
        let names = source.tensors.iter().map(|tensor| tensor.name.as_str());
        let network = Network::new(names, &source.metadata, importance.is_some());
        let choose = |tensor: &Exported| self.kind.of_tensor(&tensor.name, &tensor.shape, &network);
        let plan: Vec<Choice> = source.tensors.iter().map(choose).collect();
        let mut metadata = source.metadata;
        metadata.set("general.file_type", self.kind.file_type());
        metadata.set("general.quantization_version", 2u32);
        importance.iter().for_each(|importance| importance.tell(&mut metadata));
        let writer = self.begin(output, &source.tensors, &plan, &metadata)?;
        source.notes.iter().for_each(|note| progress::say(format_args!("note: {note}")));
        notes_on(&source.tensors, &plan).iter().for_each(progress::say);
        importance.iter().filter_map(|importance| importance.note(&source.tensors, &plan)).for_each(progress::say);
        interrupts.begin();
        let output = self.write(writer, &source.tensors, &plan, importance.as_ref(), interrupts)?;
        interrupts.end();
        Ok(output.finish()?)
    }

    /// Begins the file with its header.
    fn begin(
        &self,
        output: OutputFile,
        tensors: &[Exported],
        plan: &[Choice],
        metadata: &Metadata,
    ) -> Result<Writer<OutputFile>, Failure> {
        let info = |(tensor, choice): (&Exported, &Choice)| TensorInfo {
            name: tensor.name.clone(),
            dtype: choice.dtype,
            shape: tensor.shape.clone(),
        };
        let infos: Vec<TensorInfo> = tensors.iter().zip(plan).map(info).collect();
        Ok(Writer::new(output, &self.output.display().to_string(), metadata, &infos)?)
    }

    /// Makes and writes every tensor, with a bar on a terminal.
    fn write(
        &self,
        mut writer: Writer<OutputFile>,
        tensors: &[Exported],
        plan: &[Choice],
        importance: Option<&Importance>,
        interrupts: Interrupts,
    ) -> Result<OutputFile, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or(cores);
        let pool = Pool::new(threads);
        if pool.threads() < threads {
            let found = pool.threads();
            progress::say(format_args!("note: threads: expected {threads}, found {found}: the system gives no more"));
        }
        let bar = progress::bar("quantizing", tensors.len());
        for (tensor, choice) in tensors.iter().zip(plan) {
            let stopped = || !interrupts.go_on();
            let wanted = Wanted { dtype: choice.dtype, importance: importance.and_then(|all| all.of(tensor)) };
            let saturated = rows::convert(tensor, wanted, &pool, &stopped, &mut |bytes| writer.append(bytes))
                .map_err(|problem| problem.told(&self.input, &self.output, &tensor.name))?;
            if saturated > 0 {
                let (name, count) = (&tensor.name, saturated);
                bar.suspend(|| {
                    progress::say(format_args!("note: {name}: {count} numbers beyond f16 became its greatest"));
                });
            }
            tensor.release();
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(writer.finish()?)
    }
}

/// Lines about tensors that did not get what was asked for, and about those that are quantized twice.
fn notes_on(tensors: &[Exported], plan: &[Choice]) -> Vec<String> {
    let mut fallen: BTreeMap<(usize, &str, &str), Vec<&str>> = BTreeMap::new();
    let mut twice = Vec::new();
    for (tensor, choice) in tensors.iter().zip(plan) {
        let (from, to) = (tensor.dtype(), choice.dtype);
        if matches!(from, Dtype::Quantized(_)) && matches!(to, Dtype::Quantized(_)) && from != to {
            twice.push((&tensor.name, from));
        }
        if choice.wanted != to {
            let key = (tensor.columns(), choice.wanted.name(), to.name());
            fallen.entry(key).or_default().push(&tensor.name);
        }
    }
    let mut lines = Vec::new();
    if let Some((name, from)) = twice.first() {
        let count = twice.len();
        lines.push(format!("warning: {count} tensors are quantized already and lose twice, as {name} ({from})"));
    }
    for ((columns, wanted, to), names) in fallen {
        let count = names.len();
        lines.push(format!(
            "note: rows of {columns} are no whole blocks of {wanted}: {to} for {count} tensors, as {}",
            names[0]
        ));
    }
    lines
}
