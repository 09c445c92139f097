//! `tightfit report FILE ..`: shows what `tightfit run --report` wrote.
//!
//! ```text
//! file --document--> kernels, totals --+-- rows + summary   table, CSV, JSON
//!                                      +-- picture          SVG
//!                                      +-- page             HTML: all of them
//! ```

mod budget;
mod document;
mod page;
mod picture;
mod rows;
mod summary;

use serde::Serialize;
use serde_json::{Value, json};

use self::document::{Limit, Report};
use self::summary::Summary;
use super::{print_grid, terminal};
use crate::failure::{Failure, check_outputs, first, print, write_file};
use crate::options::{Common, Format, ReportOptions};

pub fn run(options: &ReportOptions, common: &Common) -> Result<(), Failure> {
    if let (Some(_), [_, _, ..]) = (&options.plot, &options.files[..]) {
        let why = "--plot draws a single report; give one FILE, or use --html for all of them";
        return Err(Failure::Usage(why.to_owned()));
    }
    check_outputs([("--plot", &options.plot), ("--html", &options.html)])?;
    let (budgets, files): (Vec<_>, Vec<_>) = options.files.iter().partition(|path| budget::read(path).is_some());
    for (grid, end) in budgets.into_iter().filter_map(|path| budget::read(path)) {
        print_grid(&grid, common.format)?;
        if common.format == Format::Table {
            print(&format!("\n{end}"))?;
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    let reports = files.into_iter().map(|path| Report::read(path)).collect::<Result<Vec<_>, _>>()?;
    let printed = match common.format {
        Format::Table => print(&reports.iter().map(text).collect::<Vec<_>>().join("\n")),
        Format::Csv => print_grid(&rows::values(&reports), common.format),
        Format::Json => print(&format!("{:#}\n", json!(reports.iter().map(Object::of).collect::<Vec<_>>()))),
    };
    let drawn = match (&options.plot, &reports[..]) {
        (Some(path), [report]) => write_file(path, picture::draw(report)),
        _ => Ok(()),
    };
    let paged = options.html.as_ref().map_or(Ok(()), |path| write_file(path, page::page(&reports)));
    first([printed, drawn, paged])
}

/// A report as text: a head, one line per kernel, and the summary.
fn text(report: &Report) -> String {
    let table = match report.kernels.is_empty() {
        true => String::new(),
        false => format!("\n{}", rows::table(report, terminal())),
    };
    format!("{}{table}\n{}", report.head(), Summary::of(report).text())
}

/// A report for programs: its limit under the keys of the report itself.
#[derive(Serialize)]
struct Object<'a> {
    file: &'a str,
    device: Option<&'a str>,
    cudnn: Option<&'a str>,
    #[serde(flatten)]
    limit: &'a Limit,
    kernels: Vec<Value>,
    summary: Value,
}

impl Object<'_> {
    fn of(report: &Report) -> Object<'_> {
        Object {
            file: &report.file,
            device: report.device.as_deref(),
            cudnn: report.cudnn.as_deref(),
            limit: &report.limit,
            kernels: report.kernels.iter().map(rows::object).collect(),
            summary: Summary::of(report).json(),
        }
    }
}
