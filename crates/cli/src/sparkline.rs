//! A sparkline: the speed of decoding over a text, as one line of small bars.
//!
//! The time after the first token is cut into equal slices, and each bar is the speed of a slice relative to the
//! fastest one. The tokens of a pass arrive together but were computed during the whole pass, so they count evenly over
//! it. The prompt's time is not shown.

use std::time::Instant;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const SLICES_MAX: usize = 50;
/// The least average number of passes in a slice; fewer would show single passes.
const PASSES_PER_SLICE_MIN: usize = 2;

/// The line for tokens with their arrival times and counts; `None` if there are too few.
pub fn line(arrivals: &[(Instant, usize)]) -> Option<String> {
    let first = arrivals.first()?.0;
    let times: Vec<(f64, usize)> =
        arrivals.iter().map(|(time, tokens)| ((*time - first).as_secs_f64(), *tokens)).collect();
    let rates = rates(&times);
    let fastest = rates.iter().copied().fold(0.0, f64::max);
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    if rates.len() < 4 || fastest <= 0.0 {
        return None;
    }
    let bar = |rate: &f64| BARS[((rate / fastest * BARS.len() as f64) as usize).min(BARS.len() - 1)];
    let bars: String = rates.iter().map(bar).collect();
    Some(format!("speed over the text {bars} {slowest:.1} to {fastest:.1} tokens/s"))
}

/// Tokens per second in each slice. `arrivals`: seconds since the first, and tokens; those of the first do not count.
fn rates(arrivals: &[(f64, usize)]) -> Vec<f64> {
    let passes = arrivals.len().saturating_sub(1);
    let slices = (passes / PASSES_PER_SLICE_MIN).min(SLICES_MAX);
    let end = arrivals.last().map_or(0.0, |(time, _)| *time);
    if slices == 0 || end <= 0.0 {
        return Vec::new();
    }
    let slice = end / slices as f64;
    let mut tokens = vec![0.0; slices];
    for pass in arrivals.windows(2) {
        let ((from, _), (to, count)) = (pass[0], pass[1]);
        if to <= from {
            tokens[((from / slice) as usize).min(slices - 1)] += count as f64;
            continue;
        }
        for i in (from / slice) as usize..slices {
            let shared = (to.min((i + 1) as f64 * slice) - from.max(i as f64 * slice)).max(0.0);
            tokens[i] += count as f64 * shared / (to - from);
            if to <= (i + 1) as f64 * slice {
                break;
            }
        }
    }
    tokens.iter().map(|tokens| tokens / slice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn tokens_count_evenly_over_their_pass() {
        // Passes of one second: four of one token, then two seconds for eight.
        let arrivals = [(0.0, 5), (1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1), (6.0, 8), (8.0, 8)];
        let rates = rates(&arrivals);
        assert_eq!(rates.len(), 3);
        let slice = 8.0 / 3.0;
        let total: f64 = rates.iter().map(|rate| rate * slice).sum();
        assert!((total - 20.0).abs() < 1e-9, "{rates:?}");
        assert!((rates[0] - 1.0).abs() < 1e-9 && (rates[2] - 4.0).abs() < 1e-9, "{rates:?}");
    }

    #[test]
    fn faster_decoding_has_rising_bars_and_a_short_text_none() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let arrivals: Vec<(Instant, usize)> = (0..=32).map(|i| (at(10 * i), 1 + i as usize / 5)).collect();
        let line = line(&arrivals).expect("there are enough passes");
        let bars: Vec<char> = line.chars().filter(|char| BARS.contains(char)).collect();
        assert!(bars.len() == 16 && bars.is_sorted() && bars[15] == '█', "{line}");
        assert!(line.contains('▂') && line.ends_with("tokens/s"), "{line}");
        assert_eq!(super::line(&arrivals[..5]), None);
        assert_eq!(super::line(&[]), None);
    }
}
