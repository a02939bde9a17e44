//! What a scanner of a call's parts says of each byte that it is shown.
//!
//! Scanners ([`super::json`], [`super::literal`]) are shown a text byte by byte and keep all they have to know of what
//! came before, so that a part of a call that arrives in a thousand pieces is looked at once. They do not nest by
//! recursion, so no text overflows the stack.

/// Brackets that may be open in a call. It is what `serde_json` allows, and the readers of most programs that are
/// handed a call's arguments stop there or soon after.
pub(super) const DEPTH_MAX: usize = 127;

/// Where a scanner stands behind a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// The value goes on.
    More,
    /// The value ends with this byte.
    Done,
    /// No value has this byte here; the byte is not part of it.
    Fails,
}
