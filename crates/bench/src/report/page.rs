//! The page of a report: charts with captions, and the rows as a table.
//!
//! Each chart is in it twice, for wide and for narrow screens; a chart without data is replaced by the reason. In dark
//! mode the colours of the charts are inverted.

use foretoken_console::failure::Failure;
use serde_json::Value;

use super::chart::{Chart, NARROW, WIDE};

const STYLE: &str = include_str!("style.css");

/// The whole page. `columns`: headings and fields of the table of rows.
///
/// # Errors
/// A chart cannot be drawn.
pub fn html(
    record: &Value,
    (columns, rows): (&[(&str, &str)], &[Value]),
    charts: &[Result<Chart, String>],
) -> Result<String, Failure> {
    let mut body = String::new();
    for chart in charts {
        match chart {
            Ok(chart) => {
                let (wide, narrow) = (chart.svg(WIDE)?, chart.svg(NARROW)?);
                let Chart { name, title, caption, .. } = chart;
                body += &format!(
                    "<h2>{title}</h2><figure><div class=wide>{wide}</div><div class=narrow>{narrow}</div>\
                     <figcaption>{} (<a href={name}.svg>SVG</a>, <a href={name}.png>PNG</a>)</figcaption></figure>\n",
                    escaped(caption)
                );
            }
            Err(why) => body += &format!("<p>{}</p>\n", escaped(why)),
        }
    }
    let heads: String = columns.iter().map(|(head, _)| format!("<th>{head}")).collect();
    let cell = |row: &Value, field: &str| match &row[field] {
        Value::Null => "<td>-".to_string(),
        Value::Number(number) if number.is_f64() => format!("<td>{:.2}", number.as_f64().unwrap_or_default()),
        Value::String(text) => format!("<td>{}", escaped(text)),
        other => format!("<td>{other}"),
    };
    let line = |row: &Value| -> String {
        std::iter::once("<tr>".to_string()).chain(columns.iter().map(|(_, field)| cell(row, field))).collect()
    };
    let table: String = rows.iter().map(line).collect();
    // Where nothing is timed, there is none.
    let share = record["bench_share"].as_f64().map_or(String::new(), |share| {
        format!(" Of the time of a run at most {:.2} % went into measuring.", 100.0 * share)
    });
    let words = |field: &str| escaped(record[field].as_str().unwrap_or_default());
    let command: Vec<&str> = record["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Ok(format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <title>foretoken: {model}</title>\
         <style>{STYLE}</style><main><h1>{model}</h1><p>foretoken {version} on {machine}.{share}</p>\
         <pre>{command}</pre>\n{body}<h2>All rows</h2>\
         <div class=table><table><tr>{heads}{table}</table></div></main>\n",
        model = words("model"),
        version = words("version"),
        machine = words("machine"),
        command = escaped(&command.join(" ")),
    ))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
