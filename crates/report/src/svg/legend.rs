//! Colors that color-blind readers can distinguish, and the legend that names them.

use super::canvas::{Anchor, Canvas, Marker, ON_COLOR, TEXT, text_width};

/// Color-blind safe, ordered so that neighbors differ most. **Source**: Okabe and Ito 2008, "Color universal design".
const OKABE_ITO: [&str; 7] = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
/// The same colors mixed half with white, for more than seven names.
const PALE: [&str; 7] = ["#80B9D9", "#F3CF80", "#80CFB9", "#E6BCD3", "#ABDAF4", "#EBAF80", "#F8F2A1"];

/// The color of slices in the legend, which may have any color in the picture.
const SLICES: &str = "#555555";

/// Height of the title.
const TITLE: f64 = 44.0;
/// Left and right of title and legend.
const MARGIN: f64 = 16.0;
/// Height of a line of the legend.
const LINE: f64 = 20.0;

/// The color of the name with this index; colors repeat after fourteen.
pub fn color(index: usize) -> &'static str {
    let index = index % (OKABE_ITO.len() + PALE.len());
    if index < OKABE_ITO.len() { OKABE_ITO[index] } else { PALE[index - OKABE_ITO.len()] }
}

/// The marker of the series with this index; markers repeat after four.
pub fn marker(index: usize) -> Marker {
    [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond][index % 4]
}

/// A readable text color on this background.
pub fn ink_on(color: &str) -> &'static str {
    if ["#0072B2", "#009E73", "#D55E00"].contains(&color) { "white" } else { ON_COLOR }
}

/// One entry of a legend.
pub struct Entry {
    pub name: String,
    pub color: &'static str,
    /// The marker of a data point; `None` for an area.
    pub marker: Option<Marker>,
    /// Whether the area is striped.
    pub striped: bool,
}

impl Entry {
    /// The entry of an area.
    pub fn area(name: impl Into<String>, color: &'static str) -> Entry {
        Entry { name: name.into(), color, marker: None, striped: false }
    }

    /// The entry of data points.
    pub fn points(name: impl Into<String>, color: &'static str, marker: Marker) -> Entry {
        Entry { name: name.into(), color, marker: Some(marker), striped: false }
    }

    /// The entry of striped areas, which are configurations with slices.
    pub fn slices() -> Entry {
        Entry { striped: true, ..Entry::area("in slices along space", SLICES) }
    }
}

/// Places the entries in lines no wider than `width`; also returns the total height.
fn place(entries: &[Entry], width: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (0.0, 0.0);
    let places = entries
        .iter()
        .map(|entry| {
            let needed = text_width(&entry.name, TEXT) + 42.0;
            if x > 0.0 && x + needed > width {
                (x, y) = (0.0, y + LINE);
            }
            let at = (x, y);
            x += needed;
            at
        })
        .collect();
    (places, if entries.is_empty() { 0.0 } else { y + LINE })
}

/// The height of a picture's title and legend, and of the space below them.
pub fn head_height(entries: &[Entry], width: f64) -> f64 {
    TITLE + place(entries, width - 2.0 * MARGIN).1 + 18.0
}

/// Draws a picture's title (smaller if it is long) and its legend, in lines that fit `width`.
pub fn draw_head(title: &str, entries: &[Entry], width: f64, canvas: &mut Canvas) {
    let (left, top, width) = (MARGIN, TITLE, width - 2.0 * MARGIN);
    let size = f64::min(16.0, 16.0 * width / text_width(title, 16.0).max(1.0));
    canvas.text((left, 24.0), Anchor::Start, size, title);
    for (entry, (dx, dy)) in entries.iter().zip(place(entries, width).0) {
        let (x, y) = (left + dx, top + dy + LINE / 2.0);
        match entry.marker {
            Some(marker) => canvas.marker(marker, (x + 6.0, y), entry.color, &entry.name),
            None => canvas.rect((x, y - 6.0), (12.0, 12.0), entry.color, &entry.name),
        }
        if entry.striped {
            canvas.stripe((x, y - 6.0), (12.0, 12.0));
        }
        canvas.text((x + 18.0, y), Anchor::Start, TEXT, &entry.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_wraps_and_stays_inside() {
        let entries: Vec<_> = (0..20).map(|i| Entry::area(format!("algorithm-{i}"), color(i))).collect();
        let (places, height) = place(&entries, 400.0);
        assert!(height > LINE && height < 20.0 * LINE);
        assert!(places.iter().all(|(x, y)| (0.0..400.0).contains(x) && (0.0..height).contains(y)));
        assert_eq!(place(&[], 400.0).1, 0.0);
    }

    #[test]
    fn fourteen_colors_differ() {
        let mut colors: Vec<_> = (0..14).map(color).collect();
        colors.sort();
        colors.dedup();
        assert_eq!(colors.len(), 14);
    }
}
