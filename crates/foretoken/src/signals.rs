//! Signals that the program was started to ignore.
//!
//! Each front end handles signals itself, except those that are ignored here.

/// Returns a function that says whether the program was started with the signal of this number ignored: `nohup` ignores
/// the hang-up, a shell ignores Ctrl-C for the background jobs of a script. Call it before handlers are installed. On
/// systems without `/proc` no signal counts as ignored.
pub fn ignored_signals() -> impl Fn(i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    move |signal| (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}
