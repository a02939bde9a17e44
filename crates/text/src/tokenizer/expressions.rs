//! How often a tokenizer's regular expressions may try.
//!
//! Oniguruma, with which the `tokenizers` library splits and replaces, goes back and tries again wherever an expression
//! could have matched otherwise: `(a+)+$` does so twice as often for each further `a`. Its own bound, ten million tries
//! at one place of a text and no bound over its places, lets one search take minutes. The bounds here are a second.
//!
//! They hold for the whole process, since the library has no way to say them for one expression: in a program that uses
//! Oniguruma itself, for its expressions too, from the first tokenizer on. Left out: expressions that match often and
//! try nearly as often as they may each time, whose cost is that bound times the matches.

use std::sync::Once;

/// Tries at one place of a text: about 40 ms. The expressions of known models try once for each character of a run of
/// white space, so that a run of four megabytes still passes. A fuzzer, many of whose inputs have an expression that
/// never stops of its own, need not wait as long for the same error.
const TRIES_AT_A_PLACE: u32 = if cfg!(fuzzing) { 10_000 } else { 1 << 22 };

/// Tries of one search, over all places at which it looks for a match: about a second. Expressions that find nothing
/// try once or twice at each place.
const TRIES_OF_A_SEARCH: u32 = 100_000_000;

/// Groups within each other. The expressions of known models have three; where they are compiled, each is a call.
const DEPTH: u32 = 200;

/// Places to go back to that a search may remember, of some 32 bytes each: one for each letter of a run.
const REMEMBERED: u32 = 16 << 20;

/// Bounds the tries of all expressions of the process; one that tries more often fails, and so does what searches.
pub(super) fn bound_tries() {
    static BOUNDED: Once = Once::new();
    BOUNDED.call_once(|| {
        // SAFETY: all functions store a number that every later search or compilation reads. None of ours runs yet:
        // whatever uses the library does so in `guarded`, which comes here first. A program that searches by itself on
        // another thread at this moment would read an aligned word before or after it is stored.
        unsafe {
            onig_sys::onig_set_retry_limit_in_match(TRIES_AT_A_PLACE.into());
            onig_sys::onig_set_retry_limit_in_search(TRIES_OF_A_SEARCH.into());
            onig_sys::onig_set_parse_depth_limit(DEPTH);
            onig_sys::onig_set_match_stack_limit_size(REMEMBERED);
        }
    });
}
