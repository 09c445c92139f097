//! Reports as one self-contained HTML page: no network access, no scripts, inline pictures.

use tightfit_report::Terminal;

use super::document::Report;
use super::summary::Summary;
use super::{picture, rows};

const STYLE: &str = "body{font-family:sans-serif;margin:2em auto;max-width:1100px;color:#333;padding:0 1em}\
pre{overflow-x:auto;font-size:12px;line-height:1.4}div{overflow-x:auto}p{max-width:70ch}svg{display:block}h1,h2,p{overflow-wrap:anywhere}\
@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}}";
const CAPTION: &str = "Feature maps and weights of each kernel, its workspace and the time of one call, for the program's own choice \
(plain) and for what runs now. Kernels of one layer are added up.";

/// Writes reports as an HTML page, one after another.
pub fn page(reports: &[Report]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>tightfit run</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>tightfit run</h1>\n"
    );
    for report in reports {
        let (head, summary) = (report.head(), Summary::of(report).text());
        page += &format!("<h2>{}</h2>\n<pre>{}</pre>\n", escape(head.trim_end()), escape(&summary));
        if !report.kernels.is_empty() {
            page += &format!("<p>{}</p>\n<div>{}</div>\n", escape(CAPTION), picture::draw(report));
            page += &format!("<pre>{}</pre>\n", escape(&rows::table(report, Terminal::default())));
        }
    }
    page + "</body>\n</html>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
