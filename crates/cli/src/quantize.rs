//! `foretoken quantize`: converts a model to a GGUF file of another type, which llama.cpp reads too.
//!
//! The library does the work ([`foretoken::quantize`]). The file only gets its final name once it is complete. Types
//! cannot be chosen for single tensors.

use std::path::PathBuf;

use clap::Args;
use foretoken::quantize::{self, Mixture, Quantization, Quantizing};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::output::OutputOptions;
use foretoken_console::progress::{bar, say};
use foretoken_console::{hub, values};

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
    #[arg(long = "type", value_name = "TYPE", value_parser = quantize::mixture)]
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
    /// The source cannot be read or expressed in GGUF, OUT exists or cannot be written, or Ctrl-C was pressed.
    pub fn run(&self) -> Result<(), Failure> {
        let input = hub::resolve(&self.input)?;
        if !input.exists() {
            let input = input.display();
            return Err(Failure::Other(format!("{input}: expected a directory or a .gguf file, found nothing")));
        }
        let interrupts = Interrupts::listen();
        let read: Vec<PathBuf> = std::iter::once(&input).chain(&self.imatrix).cloned().collect();
        let output = self.writing.begin(&self.output, &read)?;
        let quantization = Quantization::plan(&input, self.kind, self.imatrix.as_deref())?;
        quantization.notes.iter().for_each(say);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or(cores);
        let bar = bar("quantizing", quantization.tensors());
        let on_event = &mut |event: Quantizing| match event {
            Quantizing::Written(tensors) => bar.set_position(tensors as u64),
            Quantizing::Note(note) => bar.suspend(|| say(format_args!("note: {note}"))),
        };
        interrupts.begin();
        let written = quantization.write(output, &self.output, threads, &|| interrupts.may_continue(), on_event)?;
        interrupts.end();
        bar.finish_and_clear();
        match written {
            Some(output) => Ok(output.finish()?),
            None => {
                say(format_args!("{}: interrupted, and not written", self.output.display()));
                Err(Failure::Interrupted)
            }
        }
    }
}
