//! Matrices of integers: their quants, and a scale and a zero point for each group of inputs.

use foretoken_kernels::block::Format;
use foretoken_kernels::dtype::f16;
use foretoken_kernels::panel::PanelFormat;
use foretoken_weights::Tensor;

use super::{AWQ_NIBBLES, BLOCK, MIDDLE, Packing, Quantized};

/// A matrix of integers whose scales and zero points have been read.
pub(super) struct Integers<'a> {
    pub(super) packing: Packing,
    pub(super) words: &'a Tensor,
    pub(super) zeros: Option<Vec<u8>>,
    pub(super) scales: Vec<f32>,
    pub(super) group: usize,
}

impl Integers<'_> {
    /// The form with the same numbers: Q4_0 if all zero points are 8, floats if a scale is not representable as f16,
    /// otherwise INT4.
    pub(super) fn form(&self) -> PanelFormat {
        let is_half = |scale: &f32| f16::from_f32(*scale).to_f32() == *scale || scale.is_nan();
        match self.zeros.iter().flatten().all(|zero| *zero == MIDDLE) {
            _ if !self.scales.iter().all(is_half) => PanelFormat::F32,
            true => PanelFormat::Blocks(Format::Q4_0),
            false => PanelFormat::Blocks(Format::Int4),
        }
    }

    /// The quants of 32 inputs from `first` on, and the index of their scale and zero point.
    pub(super) fn block(&self, matrix: &Quantized, output: usize, first: usize) -> ([u8; BLOCK], usize) {
        let Quantized { inputs, outputs, .. } = *matrix;
        let word = |at: usize| u32::from_le_bytes(self.words.bytes[4 * at..4 * at + 4].try_into().expect("4 bytes"));
        let mut quants = [0; BLOCK];
        let mut eights = |at: &dyn Fn(usize) -> usize| {
            for (eight, quants) in quants.chunks_exact_mut(8).enumerate() {
                let word = word(at(first / 8 + eight));
                quants.iter_mut().enumerate().for_each(|(i, quant)| *quant = (word >> (4 * i) & 15) as u8);
            }
        };
        let group = first / self.group;
        let at = match self.packing {
            Packing::Gptq { .. } => {
                eights(&|eight| eight * outputs + output);
                group * outputs + output
            }
            Packing::Compressed { .. } => {
                eights(&|eight| output * (inputs / 8) + eight);
                output * (inputs / self.group) + group
            }
            Packing::Awq => {
                let shift = 4 * AWQ_NIBBLES[output % 8];
                for (i, quant) in quants.iter_mut().enumerate() {
                    *quant = (word((first + i) * (outputs / 8) + output / 8) >> shift & 15) as u8;
                }
                group * outputs + output
            }
        };
        (quants, at)
    }

    pub(super) fn zero(&self, at: usize) -> u8 {
        self.zeros.as_ref().map_or(MIDDLE, |zeros| zeros[at])
    }
}
