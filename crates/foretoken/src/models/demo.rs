//! The demo models, a target and its draft model, which the feature `demo` builds into the library, so that a first try
//! needs no file.
//!
//! The weights are aligned to 64 bytes, as in a mapped file, so that they are read without a copy. Both models have the
//! same tokenizer, which is embedded once.

/// The files of one embedded model.
pub struct Embedded {
    /// Its name in messages.
    pub name: &'static str,
    /// `config.json`.
    pub config: &'static [u8],
    /// `generation_config.json`.
    pub generation_config: &'static [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'static [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: &'static [u8],
    /// `chat_template.jinja`.
    pub chat_template: &'static str,
    /// `model.safetensors`.
    pub weights: &'static [u8],
}

/// Bytes that are aligned for every element type and to cache lines.
#[cfg(feature = "demo")]
#[repr(C, align(64))]
struct Aligned<B: ?Sized>(B);

/// A file of the demo models.
#[cfg(feature = "demo")]
macro_rules! file {
    ($read:ident, $path:literal) => {
        $read!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/", $path))
    };
}

#[cfg(feature = "demo")]
static TARGET_WEIGHTS: &Aligned<[u8]> = &Aligned(*file!(include_bytes, "demo-target/model.safetensors"));

#[cfg(feature = "demo")]
static DRAFT_WEIGHTS: &Aligned<[u8]> = &Aligned(*file!(include_bytes, "demo-draft/model.safetensors"));

#[cfg(feature = "demo")]
static TARGET: Embedded = Embedded {
    name: "demo-target",
    config: file!(include_bytes, "demo-target/config.json"),
    generation_config: file!(include_bytes, "demo-target/generation_config.json"),
    tokenizer: file!(include_bytes, "demo-target/tokenizer.json"),
    tokenizer_config: file!(include_bytes, "demo-target/tokenizer_config.json"),
    chat_template: file!(include_str, "demo-target/chat_template.jinja"),
    weights: &TARGET_WEIGHTS.0,
};

#[cfg(feature = "demo")]
static DRAFT: Embedded = Embedded {
    name: "demo-draft",
    config: file!(include_bytes, "demo-draft/config.json"),
    generation_config: file!(include_bytes, "demo-draft/generation_config.json"),
    tokenizer: TARGET.tokenizer,
    tokenizer_config: TARGET.tokenizer_config,
    chat_template: TARGET.chat_template,
    weights: &DRAFT_WEIGHTS.0,
};

/// The demo target, if this build has it.
pub fn target() -> Option<&'static Embedded> {
    #[cfg(feature = "demo")]
    return Some(&TARGET);
    #[cfg(not(feature = "demo"))]
    None
}

/// The demo target's draft model, if this build has it.
pub fn draft() -> Option<&'static Embedded> {
    #[cfg(feature = "demo")]
    return Some(&DRAFT);
    #[cfg(not(feature = "demo"))]
    None
}
