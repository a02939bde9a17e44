//! The result of incremental scanners.
//!
//! Scanners ([`super::json`], [`super::literal`]) get a text byte by byte and keep their state, so a value that arrives
//! in a thousand pieces is read once. They do not recurse, so no text overflows the stack.

/// Maximum number of open brackets in a call. It is the limit of `serde_json`, and most programs that parse the
/// arguments have a similar one.
pub(super) const DEPTH_MAX: usize = 127;

/// The state of a scanner after a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// The value continues.
    More,
    /// The value ends with this byte.
    Done,
    /// The byte is invalid here and not part of the value.
    Fails,
}
