//! A parser of the OpenMetrics format, as strict as `promtool check metrics`.
//!
//! It refuses: samples before their family's type, families that are interleaved, invalid names, counters without the
//! suffix `_total`, duplicate series, buckets that are unordered or decrease, a `+Inf` bucket that differs from the
//! count, and a text without `# EOF`.

use std::collections::BTreeMap;

/// Labels of a series, sorted by name.
pub type Labels = BTreeMap<String, String>;

/// All series, by name and labels.
#[derive(Debug, Default)]
pub struct Exposition {
    pub series: BTreeMap<(String, Labels), f64>,
    /// The kind of each family.
    pub kinds: BTreeMap<String, String>,
}

impl Exposition {
    /// The sum of all series with this name.
    pub fn sum(&self, name: &str) -> f64 {
        self.series.iter().filter(|((found, _), _)| found == name).map(|(_, value)| value).sum()
    }

    /// The value of the series with exactly these labels; 0 if there is none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        self.series.get(&(name.to_string(), labels)).copied().unwrap_or(0.0)
    }
}

fn is_name(name: &str, colons: bool) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || (colons && c == ':');
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

/// Parses `name="value",..` up to the brace.
fn labels(text: &str) -> Result<Labels, String> {
    let (mut labels, mut rest) = (Labels::new(), text);
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or_else(|| format!("no value: {rest}"))?;
        if !is_name(name, false) {
            return Err(format!("invalid label name: {name}"));
        }
        let mut read = String::new();
        let mut characters = value.char_indices();
        let end = loop {
            match characters.next().ok_or_else(|| format!("unterminated value: {value}"))? {
                (at, '"') => break at,
                (_, '\\') => match characters.next() {
                    Some((_, 'n')) => read.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => read.push(c),
                    other => return Err(format!("invalid escape: {other:?}")),
                },
                (_, c) => read.push(c),
            }
        };
        if labels.insert(name.to_string(), read).is_some() {
            return Err(format!("duplicate label: {name}"));
        }
        rest = &value[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Ok(labels)
}

/// The suffixes that samples of this metric type may have.
fn suffixes(kind: &str) -> Result<&'static [&'static str], String> {
    match kind {
        "counter" => Ok(&["_total", "_created"]),
        "gauge" => Ok(&[""]),
        "histogram" => Ok(&["_bucket", "_count", "_sum", "_created"]),
        other => Err(format!("unexpected metric type: {other}")),
    }
}

/// Parses a complete exposition.
pub fn read(text: &str) -> Result<Exposition, String> {
    let mut all = Exposition::default();
    let mut family: Option<(String, &'static [&'static str])> = None;
    let lines = text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?.lines();
    for line in lines {
        if let Some(rest) = line.strip_prefix("# ") {
            let (what, rest) = rest.split_once(' ').ok_or_else(|| format!("incomplete comment: {line}"))?;
            let (name, rest) = rest.split_once(' ').ok_or_else(|| format!("incomplete comment: {line}"))?;
            if !is_name(name, true) {
                return Err(format!("invalid name: {name}"));
            }
            match what {
                "HELP" if rest.is_empty() => return Err(format!("no help: {name}")),
                "HELP" | "UNIT" => {}
                "TYPE" => {
                    if all.kinds.insert(name.to_string(), rest.to_string()).is_some() {
                        return Err(format!("duplicate family: {name}"));
                    }
                    family = Some((name.to_string(), suffixes(rest)?));
                }
                _ => return Err(format!("unexpected comment: {line}")),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
        let value: f64 = value.parse().map_err(|_| format!("invalid number: {line}"))?;
        let (name, labels) = match series.split_once('{') {
            Some((name, rest)) => {
                (name, labels(rest.strip_suffix('}').ok_or_else(|| format!("missing brace: {line}"))?)?)
            }
            None => (series, Labels::new()),
        };
        let (prefix, suffixes) = family.as_ref().ok_or_else(|| format!("missing type: {line}"))?;
        let suffix = name.strip_prefix(prefix.as_str()).ok_or_else(|| format!("not in the family {prefix}: {line}"))?;
        if !suffixes.contains(&suffix) || !is_name(name, true) {
            return Err(format!("invalid name for its metric type: {line}"));
        }
        if all.series.insert((name.to_string(), labels), value).is_some() {
            return Err(format!("duplicate series: {line}"));
        }
    }
    check_values(&all)?;
    Ok(all)
}

/// Checks that counters are not negative and that histograms are consistent.
fn check_values(all: &Exposition) -> Result<(), String> {
    for (name, kind) in &all.kinds {
        if kind == "counter" {
            let wrong = all.series.iter().find(|((found, _), value)| {
                *found == format!("{name}_total") && !(value.is_finite() && **value >= 0.0)
            });
            wrong.map_or(Ok(()), |series| Err(format!("invalid counter value: {series:?}")))?;
        }
        if kind != "histogram" {
            continue;
        }
        let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for ((_, labels), value) in all.series.iter().filter(|((found, _), _)| *found == format!("{name}_bucket")) {
            let mut rest = labels.clone();
            let bound = rest.remove("le").ok_or_else(|| format!("a bucket without a bound: {name}"))?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().map_err(|_| bound.clone())? };
            buckets.entry(rest).or_default().push((bound, *value));
        }
        for (labels, mut found) in buckets {
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
            let count = all.series.get(&(format!("{name}_count"), labels.clone())).copied();
            let sum = all.series.get(&(format!("{name}_sum"), labels.clone()));
            let last = found.last().filter(|(bound, _)| bound.is_infinite()).map(|(_, value)| *value);
            if count.is_none() || last != count || sum.is_none() {
                return Err(format!("{name}: the +Inf bucket is {last:?}, the count {count:?}, the sum {sum:?}"));
            }
            if !found.is_sorted_by(|a, b| a.1 <= b.1) {
                return Err(format!("{name}: buckets decrease: {found:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn invalid_expositions_are_refused() {
    let good = "# HELP a A.\n# TYPE a counter\na_total{x=\"1\\\"\"} 2\n# HELP h H.\n# TYPE h histogram\nh_sum 1.0\n\
        h_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n# EOF\n";
    let read_good = read(good).expect("it is good");
    assert_eq!(read_good.value("a_total", &[("x", "1\"")]), 2.0);
    for (from, to) in [
        ("# EOF\n", ""),
        ("a_total{", "a{"),
        ("counter", "gauge"),
        ("h_count 2", "h_count 3"),
        ("le=\"1.0\"} 1", "le=\"1.0\"} 3"),
        ("} 2\n# HELP h", "} 2\na_total{x=\"1\\\"\"} 3\n# HELP h"),
        ("a_total{x", "a_total{1x"),
        ("a_total{x", "b_total{x"),
        ("} 2\n# HELP h", "} -2\n# HELP h"),
        ("h_sum 1.0\n", ""),
        ("# TYPE a counter\n", ""),
    ] {
        let wrong = good.replacen(from, to, 1);
        assert!(wrong != good && read(&wrong).is_err(), "{wrong}");
    }
}
