//! Signals that a program was started to pass over.
//!
//! Doors listen for signals that ask a program to end, each in its own way; which of them are not theirs to hear is
//! said once, here.

/// Whether the program was started to pass over a signal, by its number: `nohup` has it pass over the hang-up, a shell
/// over Ctrl-C where it runs in the background of a script. To be asked before any is listened for; none where the
/// system does not say.
pub fn ignored_signals() -> impl Fn(i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    move |signal| (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}
