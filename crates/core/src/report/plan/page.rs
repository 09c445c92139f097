//! The plan as one HTML page that needs nothing else: no network, no scripts, pictures as SVG inside it.

use super::grid;
use super::table::summary;
use crate::Device;
use crate::plan::Plan;
use crate::report::Terminal;
use crate::report::svg::escape;

/// Writes the plan as a page for a browser; `device` is the one that the times are of.
pub fn page(plan: &Plan, device: &Device) -> String {
    let title = format!("{}, mini-batch {}, {}", plan.network, plan.batch, plan.options.policy);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escape(&title),
        escape(&title)
    );
    page += &preformatted(&summary(plan, device));
    page += "<h2>Every layer</h2>\n";
    page += &preformatted(&grid(plan).table(Terminal::default()));
    page + "</body>\n</html>\n"
}

fn preformatted(text: &str) -> String {
    format!("<pre>{}</pre>\n", escape_lines(text))
}

/// Text as content, its lines kept.
fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

const STYLE: &str = "body{font-family:sans-serif;margin:2em auto;max-width:1100px;color:#333;padding:0 1em}\
pre{overflow-x:auto;font-size:12px;line-height:1.4}div{overflow-x:auto}p{max-width:70ch}";
