//! The charts of `analyze`: alpha by drafter, predicted and measured speed-ups, and acceptance by depth; what a pass
//! costs is drawn as for `bench generate`.

use super::results::{DrafterResult, GammaResult};
use crate::report::{Chart, Mark, Series};

/// A line's or a drafter's name with its temperature.
fn label(result: &DrafterResult) -> String {
    format!("{}, temperature {}", result.drafter, result.temperature)
}

/// The values of alpha.
pub fn alphas(results: &[DrafterResult]) -> Chart {
    let (mut categories, mut lines): (Vec<String>, Vec<Series>) = (Vec::new(), Vec::new());
    for result in results {
        let x = categories.iter().position(|name| *name == result.drafter).unwrap_or_else(|| {
            categories.push(result.drafter.clone());
            categories.len() - 1
        });
        let name = format!("temperature {}", result.temperature);
        let mark = Mark { x: x as f64, y: result.alpha, interval: None };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.marks.push(mark),
            None => lines.push(Series { name, marks: vec![mark] }),
        }
    }
    Chart {
        name: "alpha",
        title: "Alpha",
        caption: "The probability that a drafted token is accepted, on average over positions: the sum of min(p, q)."
            .to_string(),
        x_label: "drafter",
        y_label: "alpha",
        categories,
        joined: false,
        lines,
    }
}

/// Speed-ups by draft length, as measured and by Theorem 3.8.
pub fn speedups(results: &[DrafterResult]) -> Chart {
    let line = |result: &DrafterResult, what: &str, mark: &dyn Fn(&GammaResult) -> Option<Mark>| Series {
        name: format!("{}: {what}", label(result)),
        marks: result.rows.iter().filter_map(mark).collect(),
    };
    let measured = |row: &GammaResult| {
        let measured = row.measured?;
        Some(Mark { x: row.gamma as f64, y: measured.value, interval: measured.interval })
    };
    let predicted = |row: &GammaResult| Some(Mark { x: row.gamma as f64, y: row.predicted, interval: None });
    let both = |result| [line(result, "measured", &measured), line(result, "Theorem 3.8", &predicted)];
    Chart {
        name: "speedup",
        title: "Speed-up",
        caption: "How many times as fast as plain decoding drafts of each length are, as measured and by Theorem 3.8."
            .to_string(),
        x_label: "gamma, tokens drafted for a pass",
        y_label: "times plain decoding",
        categories: Vec::new(),
        joined: true,
        lines: results.iter().flat_map(both).filter(|line| !line.marks.is_empty()).collect(),
    }
}

/// Acceptance by depth, which the theory takes to be the same everywhere.
///
/// # Errors
/// No drafted token was accepted.
pub fn depths(results: &[DrafterResult]) -> Result<Chart, String> {
    let line = |result: &DrafterResult| {
        let marks = result.by_depth.iter().enumerate();
        let mark = |(at, part): (usize, &f64)| Mark { x: (at + 1) as f64, y: *part, interval: None };
        Series { name: label(result), marks: marks.map(mark).collect() }
    };
    let lines: Vec<Series> = results.iter().map(line).filter(|line| !line.marks.is_empty()).collect();
    if lines.is_empty() {
        return Err("Acceptance by depth is not drawn: no drafted token was accepted.".to_string());
    }
    Ok(Chart {
        name: "depth",
        title: "Acceptance by depth",
        caption:
            "Of drafts that were accepted up to a token, the part of which the next one was accepted as well; the \
                  theory takes it to be alpha everywhere. The deepest are means over few drafts."
                .to_string(),
        x_label: "token of the draft",
        y_label: "part that is accepted",
        categories: Vec::new(),
        joined: true,
        lines,
    })
}
