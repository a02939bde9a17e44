//! The charts of `bench trie`: tokens of a pass by its rows and by branch length, what each procedure is worth, and
//! memory by capacity.

use foretoken_drafters::Layout;

use super::{CAPACITIES, TrieResult, TrieResults, names};
use crate::report::{Chart, Mark, Series};

/// All charts, each unless its results were interrupted.
pub fn charts(results: &TrieResults) -> Vec<Result<Chart, String>> {
    vec![lengths(&results.lengths), procedures(&results.procedures), capacities(&results.capacities)]
}

fn mark(x: f64, y: f64) -> Mark {
    Mark { x, y, interval: None }
}

/// A line for each layout and branch length.
fn lengths(found: &[TrieResult]) -> Result<Chart, String> {
    let mut lines: Vec<Series> = Vec::new();
    for layout in Layout::ALL {
        for result in found.iter().filter(|result| result.options.layout == layout) {
            let name = format!("{}, branches of {}", layout.name(), result.options.branch_length);
            let mark = mark(result.options.nodes_max as f64, result.stats.tokens_per_pass());
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.marks.push(mark),
                None => lines.push(Series { name, marks: vec![mark] }),
            }
        }
    }
    if lines.is_empty() {
        return Err("Tokens by length are not drawn: nothing was played to its end.".to_string());
    }
    Ok(Chart {
        name: "lengths",
        title: "Tokens of a pass by its length",
        caption:
            "The effective decoding length against the decoding length, the most rows of a draft (Figures 4 and 5 \
                  of the paper)."
                .to_string(),
        x_label: "decoding length, rows",
        y_label: "tokens a pass",
        categories: Vec::new(),
        joined: true,
        lines,
    })
}

fn procedures(found: &[TrieResult]) -> Result<Chart, String> {
    if found.is_empty() {
        return Err("The procedures are not drawn: nothing was played to its end.".to_string());
    }
    let marks = found.iter().enumerate().map(|(x, result)| mark(x as f64, result.stats.tokens_per_pass()));
    Ok(Chart {
        name: "procedures",
        title: "What each procedure is worth",
        caption: "Tokens of a pass with one procedure of the trie switched off, and with all (Table 5 of the paper)."
            .to_string(),
        x_label: "switched off",
        y_label: "tokens a pass",
        categories: names().to_vec(),
        joined: false,
        lines: vec![Series { name: "tokens a pass".to_string(), marks: marks.collect() }],
    })
}

fn capacities(found: &[TrieResult]) -> Result<Chart, String> {
    if found.is_empty() {
        return Err("Memory is not drawn: nothing was played to its end.".to_string());
    }
    let mib = |result: &TrieResult| result.memory.needed().bytes as f64 / (1 << 20) as f64;
    let each = || found.iter().enumerate();
    let memory = each().map(|(x, result)| mark(x as f64, mib(result))).collect();
    let tokens = each().map(|(x, result)| mark(x as f64, result.stats.tokens_per_pass())).collect();
    Ok(Chart {
        name: "memory",
        title: "Memory and tokens of a pass by capacity",
        caption: "The memory of all tries at its most, and tokens of a pass, against the most nodes below a first \
                  token in decoding lengths (Table 6 and Figure 6 of the paper)."
            .to_string(),
        x_label: "capacity, decoding lengths",
        y_label: "MiB, tokens a pass",
        categories: CAPACITIES.map(|times| times.to_string()).to_vec(),
        joined: true,
        lines: vec![
            Series { name: "memory, MiB".to_string(), marks: memory },
            Series { name: "tokens a pass".to_string(), marks: tokens },
        ],
    })
}
