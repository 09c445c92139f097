//! Rows under a header, written either as an aligned table or as comma-separated values.

#[cfg(feature = "tables")]
use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, Width,
};

/// Longer words may be broken.
#[cfg(feature = "tables")]
const LONGEST: usize = 24;
/// The least width of the first column.
#[cfg(feature = "tables")]
const NARROWEST: usize = 6;
/// Spaces between columns.
#[cfg(feature = "tables")]
const WIDE: usize = 2;
/// The narrow width, if a table is too wide for the terminal.
#[cfg(feature = "tables")]
const NARROW: usize = 1;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// The terminal to write a table for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminal {
    /// Width in characters; long cells wrap to fit. `None` for unlimited.
    pub width: Option<u16>,
    /// Whether the header may use escape sequences for bold.
    pub styled: bool,
}

/// Rows under a header.
///
/// ```
/// use tightfit_report::{Align, Grid, Terminal};
/// let mut grid = Grid::new([("network", Align::Left), ("layers", Align::Right)]);
/// grid.push(["alexnet", "5"]);
/// grid.push(["a, b", "13"]);
/// assert_eq!(grid.csv(), "network,layers\nalexnet,5\n\"a, b\",13\n");
/// # #[cfg(feature = "tables")]
/// assert_eq!(grid.table(Terminal::default()).lines().nth(2), Some("alexnet       5"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A grid of these columns, without rows.
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = (S, Align)>) -> Grid {
        Grid { columns: columns.into_iter().map(|(name, align)| (name.into(), align)).collect(), rows: Vec::new() }
    }

    /// Adds a row. Missing cells are empty; extra cells are dropped.
    pub fn push<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// The rows as a JSON array of objects, with the column names as keys. An empty cell for a number is null.
    pub fn json(&self) -> String {
        let object = |row: &Vec<String>| {
            let fields = self.columns.iter().zip(row).map(|((name, align), cell)| (name.clone(), value(cell, *align)));
            serde_json::Value::Object(fields.collect())
        };
        let rows: Vec<_> = self.rows.iter().map(object).collect();
        format!("{:#}\n", serde_json::Value::Array(rows))
    }

    #[cfg(feature = "tables")]
    /// The grid as aligned text with a line under the header; every line ends in a line feed.
    pub fn table(&self, terminal: Terminal) -> String {
        let mut table = Table::new();
        table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-')));
        table.force_no_tty();
        if terminal.styled {
            table.enforce_styling();
        }
        if let Some(width) = terminal.width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        table.set_header(self.columns.iter().map(|(name, _)| Cell::new(name).add_attribute(Attribute::Bold)));
        table.add_rows(&self.rows);
        let (widths, gap) = terminal.width.map_or((Vec::new(), WIDE), |width| self.fitted(width.into()));
        for (index, (column, (_, align))) in table.column_iter_mut().zip(&self.columns).enumerate() {
            // One of the spaces is the line between columns.
            let padding = gap as u16 - 1;
            column.set_padding((0, padding));
            if let Some(width) = widths.get(index) {
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(*width as u16 + padding)));
            }
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// The widths of the columns in a terminal and the spaces behind each: fewer where the words do not fit otherwise.
    #[cfg(feature = "tables")]
    fn fitted(&self, terminal: usize) -> (Vec<usize>, usize) {
        let wide = self.widths(terminal, WIDE);
        let is_whole = wide.first().is_none_or(|first| *first >= self.least(0));
        let fits = is_whole && wide.iter().sum::<usize>() + WIDE * wide.len() <= terminal;
        if fits { (wide, WIDE) } else { (self.widths(terminal, NARROW), NARROW) }
    }

    /// The widths of the columns with this many spaces after each. Headers give way first, then the widest columns, down to their longest word, or
    /// number with its unit; then the first column.
    #[cfg(feature = "tables")]
    fn widths(&self, terminal: usize, gap: usize) -> Vec<usize> {
        let columns = 0..self.columns.len();
        let mut widths: Vec<usize> = columns.clone().map(|column| self.width(column, |_, text| chars(text))).collect();
        let least: Vec<usize> = columns.clone().map(|column| self.least(column)).collect();
        let room = terminal.saturating_sub(gap * widths.len());
        let cells = |column: usize| self.rows.iter().map(|row| chars(&row[column])).max().unwrap_or(0);
        let cells: Vec<usize> = columns.clone().map(cells).collect();
        while widths.iter().sum::<usize>() > room {
            let wide = columns.clone().filter(|&column| widths[column] > least[column]);
            let widest = wide.max_by_key(|&column| (widths[column] > cells[column], widths[column]));
            match widest.or(Some(0).filter(|_| widths.first().is_some_and(|first| *first > NARROWEST))) {
                Some(column) => widths[column] -= 1,
                None => break,
            }
        }
        widths
    }

    /// The width of a column's longest word, or number with its unit.
    #[cfg(feature = "tables")]
    fn least(&self, column: usize) -> usize {
        self.width(column, |align, text| match align {
            Align::Left => text.split_whitespace().map(chars).max().unwrap_or(0).min(LONGEST),
            Align::Right => chars(text),
        })
    }

    /// The maximum of `of` over a column's header, by words, and its cells.
    #[cfg(feature = "tables")]
    fn width(&self, column: usize, of: impl Fn(Align, &str) -> usize) -> usize {
        let (name, align) = &self.columns[column];
        let cells = self.rows.iter().map(|row| of(*align, &row[column]));
        cells.chain([of(Align::Left, name)]).max().unwrap_or(0)
    }

    /// The grid as comma-separated values, with a header line and one line per row.
    ///
    /// **Source**: RFC 4180, but with plain line feeds: cells are quoted if necessary, and quotes in them are doubled.
    pub fn csv(&self) -> String {
        let header = self.columns.iter().map(|(name, _)| quoted(name)).collect::<Vec<_>>();
        let rows = self.rows.iter().map(|row| row.iter().map(|cell| quoted(cell)).collect());
        std::iter::once(header).chain(rows).map(|cells| cells.join(",") + "\n").collect()
    }
}

/// A count with its noun: `1 device`, `2 devices`.
pub fn count(number: usize, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(feature = "tables")]
fn chars(text: &str) -> usize {
    text.chars().count()
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

/// A cell as JSON: a number if it parses as one in a right-aligned column.
fn value(cell: &str, align: Align) -> serde_json::Value {
    let number = || cell.parse().map(u64::into).or_else(|_| cell.parse().map(f64::into));
    match align {
        Align::Right if cell.is_empty() => serde_json::Value::Null,
        Align::Right => number().unwrap_or_else(|_| cell.into()),
        Align::Left => cell.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut grid = Grid::new([("layer", Align::Left), ("configuration", Align::Left), ("time [µs]", Align::Right)]);
        grid.push(["conv1", "2 x 128 fft-tiling", "1234.5"]);
        grid.push(["conv2, \"wide\"", "100 a-long-name + 100 a-long-name + 56 another-long-name", "7.0"]);
        grid.push(["short row"]);
        grid
    }

    #[test]
    fn cells_are_quoted_if_necessary() {
        insta::assert_snapshot!(grid().csv(), @r#"
        layer,configuration,time [µs]
        conv1,2 x 128 fft-tiling,1234.5
        "conv2, ""wide""",100 a-long-name + 100 a-long-name + 56 another-long-name,7.0
        short row,,
        "#);
        assert_eq!(quoted("a\r\nb"), "\"a\r\nb\"");
    }

    #[test]
    fn tables_align_and_wrap() {
        insta::assert_snapshot!(grid().table(Terminal::default()), @r#"
        layer          configuration                                             time [µs]
        -----------------------------------------------------------------------------------
        conv1          2 x 128 fft-tiling                                           1234.5
        conv2, "wide"  100 a-long-name + 100 a-long-name + 56 another-long-name        7.0
        short row
        "#);
        insta::assert_snapshot!(grid().table(Terminal { width: Some(50), styled: false }), @r#"
        layer          configuration                time
                                                    [µs]
        -------------------------------------------------
        conv1          2 x 128 fft-tiling         1234.5
        conv2, "wide"  100 a-long-name + 100         7.0
                       a-long-name + 56
                       another-long-name
        short row
        "#);
    }

    #[test]
    fn a_table_that_is_too_wide_has_single_spaces() {
        let mut grid = Grid::new(["a", "b", "c", "d"].map(|name| (name, Align::Right)));
        grid.push(["123456"; 4]);
        for (width, row) in [(32, "123456  123456  123456  123456"), (30, "123456 123456 123456 123456")] {
            let table = grid.table(Terminal { width: Some(width), styled: false });
            assert_eq!(table.lines().last(), Some(row));
        }
    }

    #[test]
    fn spaces_give_way_before_words_of_the_first_column() {
        let mut grid = Grid::new([("layer", Align::Left), ("time", Align::Right), ("map", Align::Right)]);
        grid.push(["l4.2.c2.relu", "123456", "123456"]);
        let table = grid.table(Terminal { width: Some(28), styled: false });
        assert_eq!(table.lines().last(), Some("l4.2.c2.relu 123456 123456"));
    }

    #[test]
    fn only_styled_tables_contain_escapes() {
        assert!(!grid().table(Terminal::default()).contains('\u{1b}'));
        assert!(grid().table(Terminal { width: None, styled: true }).contains('\u{1b}'));
    }

    #[test]
    fn a_grid_without_rows_is_its_header() {
        let grid = Grid::new([("layer", Align::Left)]);
        assert_eq!(grid.csv(), "layer\n");
        assert!(grid.table(Terminal { width: Some(1), styled: false }).starts_with('l'));
        assert_eq!(Grid::new::<&str>([]).csv(), "\n");
    }
}
