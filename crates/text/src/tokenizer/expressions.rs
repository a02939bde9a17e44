//! Limits on the backtracking of a tokenizer's regular expressions.
//!
//! Oniguruma, with which the `tokenizers` library splits and replaces, backtracks wherever an expression could have
//! matched otherwise: for `(a+)+$` the retries double with each further `a`. Its default, ten million retries at one
//! position and no limit over all positions, lets one search take minutes. The limits here allow about a second.
//!
//! They hold for the whole process, since the library cannot set them for one expression: if a program uses Oniguruma
//! itself, for its expressions, too, from the first tokenizer on. An expression that matches often and nearly reaches
//! the limit each time is not bounded: it costs the limit times the number of matches.

use std::sync::Once;

/// Retries at one position of a text: about 40 ms. The expressions of known models retry once for each character of a
/// run of white space, so a run of four megabytes still passes. Fuzzing, where many inputs have an expression that
/// never ends by itself, uses a lower limit to reach the same error sooner.
const RETRIES_PER_POSITION: u32 = if cfg!(fuzzing) { 10_000 } else { 1 << 22 };

/// Retries of one search over all positions: about a second. Expressions that find nothing retry once or twice at each
/// position.
const RETRIES_PER_SEARCH: u32 = 100_000_000;

/// Depth of nested groups. The expressions of known models have three; compiling recurses once per level.
const PARSE_DEPTH_MAX: u32 = 200;

/// Entries of a search's backtracking stack, of some 32 bytes each: one for each letter of a run.
const MATCH_STACK_MAX: u32 = 16 << 20;

/// Sets the limits for all expressions of the process; a search that exceeds them fails with an error.
pub(super) fn limit_backtracking() {
    static LIMITED: Once = Once::new();
    LIMITED.call_once(|| {
        // SAFETY: all functions store a number that every later search or compilation reads. None of foretoken's runs
        // yet: the library is only used through `guarded`, which calls this function first. If a program uses
        // Oniguruma itself on another thread at this moment, it reads an aligned word before or after it is stored.
        unsafe {
            onig_sys::onig_set_retry_limit_in_match(RETRIES_PER_POSITION.into());
            onig_sys::onig_set_retry_limit_in_search(RETRIES_PER_SEARCH.into());
            onig_sys::onig_set_parse_depth_limit(PARSE_DEPTH_MAX);
            onig_sys::onig_set_match_stack_limit_size(MATCH_STACK_MAX);
        }
    });
}
