//! Signals that a program was started to ignore.
//!
//! Each front end handles signals that ask a program to end in its own way; which of them it has to ignore is decided
//! here.

/// Whether the program was started with a signal ignored, by its number: `nohup` ignores the hang-up, a shell ignores
/// Ctrl-C for the background jobs of a script. Call it before handlers are installed; none where the system does not
/// say.
pub fn ignored_signals() -> impl Fn(i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    move |signal| (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}
