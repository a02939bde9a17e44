//! Element types: how many bytes hold how many elements.
//!
//! Three types of floats and thirteen of quantized blocks can be computed with. Every other type of either format is
//! known by name and size, so that a file with one (an integer buffer, an IQ1_S matrix) still opens, and an error about
//! it can name it. Types that ggml has removed, or whose size is not public, are known by name only.

use std::fmt;

/// The layout of a type: `elements` consecutive elements of a row take `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The type's name as its format spells it.
    pub name: &'static str,
    /// Elements per block; 1 for plain types.
    pub elements: usize,
    /// Bytes per block.
    pub bytes: usize,
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit floats of IEEE 754.
    F16,
    /// The upper halves of 32-bit floats.
    BF16,
    /// Blocks of quantized elements that can be computed with; the name tells which.
    Quantized(Layout),
    /// A type that cannot be computed with; [`crate::Weights::require`] refuses it.
    Other(Layout),
}

impl Dtype {
    /// Blocks of 32 elements: an f16 scale, then 32 signed bytes.
    pub const Q8_0: Dtype = Dtype::Quantized(Layout { name: "Q8_0", elements: 32, bytes: 34 });

    /// The layout of the type.
    pub const fn layout(self) -> Layout {
        match self {
            Dtype::F32 => Layout { name: "F32", elements: 1, bytes: 4 },
            Dtype::F16 => Layout { name: "F16", elements: 1, bytes: 2 },
            Dtype::BF16 => Layout { name: "BF16", elements: 1, bytes: 2 },
            Dtype::Quantized(layout) | Dtype::Other(layout) => layout,
        }
    }

    /// The type's name.
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// The number of bytes of a tensor of this shape, or `None` if its rows are not whole blocks or the number
    /// overflows.
    pub fn size_of(self, shape: &[usize]) -> Option<usize> {
        let Layout { elements, bytes, .. } = self.layout();
        let row = shape.last().copied().unwrap_or(1);
        if elements == 0 || !row.is_multiple_of(elements) {
            return None;
        }
        let count = shape.iter().try_fold(1_usize, |product, &dimension| product.checked_mul(dimension))?;
        (count / elements).checked_mul(bytes)
    }

    /// The type that ggml gives this name, such as `Q4_K`, if its size is known.
    pub fn from_ggml_name(name: &str) -> Option<Dtype> {
        let number = GGML.iter().position(|layout| layout.name == name)?;
        Dtype::from_ggml(number as u32)?.ok()
    }

    /// ggml's number of this type; `None` for types that only safetensors has.
    pub(crate) fn ggml_number(self) -> Option<u32> {
        GGML.iter().position(|layout| *layout == self.layout()).map(|number| number as u32)
    }

    /// The type that safetensors gives this name.
    pub(crate) fn from_safetensors(name: &str) -> Option<Dtype> {
        Some(match name {
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::BF16,
            _ => Dtype::Other(*SAFETENSORS_OTHERS.iter().find(|layout| layout.name == name)?),
        })
    }

    /// The type with this number in ggml. `Err` names a type whose size is not known; `None` means that ggml has no
    /// such type.
    pub(crate) fn from_ggml(number: u32) -> Option<Result<Dtype, &'static str>> {
        let layout = *GGML.get(usize::try_from(number).ok()?)?;
        Some(match number {
            0 => Ok(Dtype::F32),
            1 => Ok(Dtype::F16),
            2 | 3 | 6..=8 | 10..=14 | 20 | 23 | 39 => Ok(Dtype::Quantized(layout)),
            30 => Ok(Dtype::BF16),
            _ if layout.elements == 0 => Err(layout.name),
            _ => Ok(Dtype::Other(layout)),
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const fn layout(name: &'static str, elements: usize, bytes: usize) -> Layout {
    Layout { name, elements, bytes }
}

/// Types of safetensors that cannot be computed with.
const SAFETENSORS_OTHERS: [Layout; 19] = [
    layout("BOOL", 1, 1),
    layout("F4", 2, 1),
    layout("F6_E2M3", 4, 3),
    layout("F6_E3M2", 4, 3),
    layout("U8", 1, 1),
    layout("I8", 1, 1),
    layout("F8_E5M2", 1, 1),
    layout("F8_E4M3", 1, 1),
    layout("F8_E8M0", 1, 1),
    layout("F8_E4M3FNUZ", 1, 1),
    layout("F8_E5M2FNUZ", 1, 1),
    layout("I16", 1, 2),
    layout("U16", 1, 2),
    layout("I32", 1, 4),
    layout("U32", 1, 4),
    layout("C64", 1, 8),
    layout("F64", 1, 8),
    layout("I64", 1, 8),
    layout("U64", 1, 8),
];

/// The types of ggml, by number. A type with 0 elements was removed from ggml, or its size is not known.
const GGML: [Layout; 43] = [
    layout("F32", 1, 4),
    layout("F16", 1, 2),
    layout("Q4_0", 32, 18),
    layout("Q4_1", 32, 20),
    layout("Q4_2", 0, 0),
    layout("Q4_3", 0, 0),
    layout("Q5_0", 32, 22),
    layout("Q5_1", 32, 24),
    layout("Q8_0", 32, 34),
    layout("Q8_1", 32, 36),
    layout("Q2_K", 256, 84),
    layout("Q3_K", 256, 110),
    layout("Q4_K", 256, 144),
    layout("Q5_K", 256, 176),
    layout("Q6_K", 256, 210),
    layout("Q8_K", 256, 292),
    layout("IQ2_XXS", 256, 66),
    layout("IQ2_XS", 256, 74),
    layout("IQ3_XXS", 256, 98),
    layout("IQ1_S", 256, 50),
    layout("IQ4_NL", 32, 18),
    layout("IQ3_S", 256, 110),
    layout("IQ2_S", 256, 82),
    layout("IQ4_XS", 256, 136),
    layout("I8", 1, 1),
    layout("I16", 1, 2),
    layout("I32", 1, 4),
    layout("I64", 1, 8),
    layout("F64", 1, 8),
    layout("IQ1_M", 256, 56),
    layout("BF16", 1, 2),
    layout("Q4_0_4_4", 0, 0),
    layout("Q4_0_4_8", 0, 0),
    layout("Q4_0_8_8", 0, 0),
    layout("TQ1_0", 256, 54),
    layout("TQ2_0", 256, 66),
    layout("IQ4_NL_4_4", 0, 0),
    layout("IQ4_NL_4_8", 0, 0),
    layout("IQ4_NL_8_8", 0, 0),
    layout("MXFP4", 32, 17),
    layout("NVFP4", 64, 36),
    layout("Q1_0", 128, 18),
    layout("Q2_0", 0, 0),
];
