//! The findings of `doctor`: a table that fits 80 columns, with paths and advice below it.

use tightfit_report::{Align, Grid, Terminal};

use super::{print_grid, terminal};
use crate::failure::{Failure, print};
use crate::options::Format;
use crate::preload::{Form, found};

/// Width of the narrowest terminal.
const WIDTH: usize = 80;
/// The longest detail that is shown in the table; longer ones go below it.
const DETAIL: usize = 50;

/// One thing that was checked.
#[derive(Default)]
pub struct Finding {
    pub what: &'static str,
    /// A word: `ok`, `missing`.
    pub state: &'static str,
    /// Version, name or count, or why it is missing.
    pub detail: String,
    /// Where it is.
    pub path: Option<String>,
    /// The next step for the user.
    pub advice: String,
}

/// One form of the library that `tightfit run` preloads: where it is, and where that comes from.
pub fn preload_library(what: &'static str, form: Form) -> Finding {
    match found(form) {
        Ok((path, origin)) => {
            let path = Some(path.display().to_string());
            Finding { what, state: "ok", detail: origin.to_owned(), path, ..Finding::default() }
        }
        Err(failure) => Finding { what, state: "missing", detail: failure.text(), ..Finding::default() },
    }
}

/// All findings, in the order of checking.
#[derive(Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Prints them; CSV and JSON have a row for each.
    pub fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Table => print(&self.table()),
            Format::Csv | Format::Json => print_grid(&self.grid(), format),
        }
    }

    fn grid(&self) -> Grid {
        let columns = ["what", "state", "found", "path", "advice"];
        let mut grid = Grid::new(columns.map(|column| (column, Align::Left)));
        for Finding { what, state, detail, path, advice } in &self.0 {
            grid.push([*what, state, detail, path.as_deref().unwrap_or_default(), advice]);
        }
        grid
    }

    fn table(&self) -> String {
        let mut grid = Grid::new(["what", "state", "found"].map(|column| (column, Align::Left)));
        let mut below = String::new();
        for Finding { what, state, detail, path, advice } in &self.0 {
            // If nothing was found, the advice may be all there is to show.
            let (detail, advice) =
                if detail.is_empty() && path.is_none() { (advice, detail) } else { (detail, advice) };
            let is_short = detail.chars().count() <= DETAIL && !detail.contains('\n');
            grid.push([*what, state, if is_short { detail.as_str() } else { "" }]);
            let mut lines: Vec<String> = Vec::new();
            if !is_short {
                lines.extend(detail.lines().flat_map(wrapped));
            }
            lines.extend(path.clone());
            lines.extend(wrapped(advice));
            if !lines.is_empty() {
                below += &format!("\n{what}\n");
                lines.iter().for_each(|line| below += &format!("  {line}\n"));
            }
        }
        grid.table(Terminal { width: None, ..terminal() }) + &below
    }
}

/// Wraps a line, keeping its indentation. Never breaks a word: a path stays in one piece.
fn wrapped(line: &str) -> Vec<String> {
    let indent = line.len() - line.trim_start().len();
    let mut lines: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= WIDTH - 2 => *last += &format!(" {word}"),
            _ => lines.push(format!("{}{word}", " ".repeat(indent))),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_exceed_80_columns() {
        let path = format!("/opt/{}/libcudnn.so.9", "long/".repeat(30));
        let findings = Findings(vec![
            Finding {
                what: "cuDNN",
                state: "ok",
                detail: "9.19.0".to_owned(),
                path: Some(path.clone()),
                ..Finding::default()
            },
            Finding {
                what: "driver",
                state: "missing",
                detail: format!("libcuda.so.1 was not found. Looked at:\n  {path} (LD_LIBRARY_PATH): no such file"),
                advice: "install the NVIDIA driver ".repeat(5),
                ..Finding::default()
            },
            Finding {
                what: "device",
                state: "not tried",
                advice: "fix the driver first".to_owned(),
                ..Finding::default()
            },
        ]);
        let table = findings.table();
        let wide: Vec<&str> = table.lines().filter(|line| line.chars().count() > WIDTH).collect();
        assert_eq!(wide, [format!("  {path}"), format!("    {path}")], "{table}");
        for part in [
            "cuDNN   ok         9.19.0\n",
            "device  not tried  fix the driver first\n\ncuDNN",
            "\ncuDNN\n  /opt",
            "\ndriver\n  libcuda",
            "no such file\n  install the NVIDIA",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
        let grid = findings.grid().csv();
        assert!(grid.contains(&format!("cuDNN,ok,9.19.0,{path},\n")), "{grid}");
    }
}
