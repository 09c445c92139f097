//! Shapes and text in pixels, collected into one SVG document.

use std::fmt::Write;

/// Size of ordinary text, in pixels.
pub const TEXT: f64 = 12.0;
/// Dark gray of text and axes.
pub const INK: &str = "#333333";
/// Light gray of grid lines and of reference values.
pub const FAINT: &str = "#dddddd";
/// Dark gray of text on light colors, which stays dark where the page is dark.
pub const ON_COLOR: &str = "#222222";
/// The changes for readers who prefer dark pages: the background, ink, grid lines, and the edges between shapes.
const DARK: &str = r##"<style>@media (prefers-color-scheme: dark) {
.paper { fill: #16181c }
text:not([fill]), [fill="#333333"], [fill="#000000"] { fill: #dddddd }
[stroke="#333333"], [stroke="#000000"] { stroke: #bbbbbb }
[stroke="#dddddd"] { stroke: #3a3d42 }
[stroke="white"] { stroke: #16181c }
}</style>"##;
/// From one white stripe to the next.
const STRIPE: f64 = 5.0;
/// Medium gray of separator lines.
pub const GRAY: &str = "#999999";

/// The alignment of text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// The shape of a data point, so that series differ in more than color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    /// A less prominent marker, for many points.
    Dot,
}

/// A drawing of a given size; later shapes are on top.
pub struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// The estimated width of `text` at `size`, slightly generous because generic fonts differ.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.58
}

impl Canvas {
    pub fn new(width: f64, height: f64) -> Canvas {
        Canvas { width, height, body: String::new() }
    }

    /// A filled rectangle; viewers show `tooltip` under the pointer.
    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, tooltip: &str) {
        let tooltip = escape(tooltip);
        self.add(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"><title>{tooltip}</title></rect>"#
        ));
    }

    /// A filled rectangle with a thin white edge, so that neighbors stay apart.
    #[cfg_attr(not(feature = "tables"), expect(dead_code, reason = "only the page of a plan draws blocks"))]
    pub fn outlined(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, tooltip: &str) {
        let tooltip = escape(tooltip);
        self.add(format_args!(
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}" stroke="white" stroke-width="0.3"><title>{tooltip}</title></rect>"#
        ));
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: &str) {
        self.add(format_args!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}"/>"#));
    }

    pub fn dashed(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: &str) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-width="1.5" stroke-dasharray="6 4"/>"#
        ));
    }

    /// White stripes over a rectangle; viewers still show the tooltip of the shape under them.
    pub fn stripe(&mut self, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let mut stripes = String::new();
        let mut offset = STRIPE - height;
        while offset < width {
            // From the lower left to the upper right, cut off at both sides.
            let (from, to) = (f64::max(0.0, -offset), f64::min(height, width - offset));
            if from < to {
                let (x1, y1, x2, y2) = (x + offset + from, y + height - from, x + offset + to, y + height - to);
                // Writing to a String cannot fail.
                let _ = write!(stripes, "M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}");
            }
            offset += STRIPE;
        }
        if !stripes.is_empty() {
            self.add(format_args!(r#"<path d="{stripes}" stroke="white" stroke-width="1.2" pointer-events="none"/>"#));
        }
    }

    /// A line through all points, `thick` pixels wide.
    pub fn path(&mut self, points: &[(f64, f64)], stroke: &str, thick: usize) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.add(format_args!(r#"<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="{thick}"/>"#));
    }

    /// The area inside an outline.
    #[cfg_attr(not(feature = "tables"), expect(dead_code, reason = "only the page of a plan draws areas"))]
    pub fn area(&mut self, outline: &[(f64, f64)], fill: &str) {
        let outline: Vec<String> = outline.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let outline = outline.join(" ");
        self.add(format_args!(r#"<polygon points="{outline}" fill="{fill}"/>"#));
    }

    /// A data point, 9 pixels wide.
    pub fn marker(&mut self, marker: Marker, (x, y): (f64, f64), fill: &str, tooltip: &str) {
        let corners: &[(f64, f64)] = match marker {
            Marker::Circle | Marker::Dot => &[],
            Marker::Square => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
            Marker::Triangle => &[(0.0, -5.0), (5.0, 4.0), (-5.0, 4.0)],
            Marker::Diamond => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
        };
        let tooltip = escape(tooltip);
        let stroke = if marker == Marker::Dot { fill } else { "white" };
        let style = format!(r#"fill="{fill}" stroke="{stroke}"><title>{tooltip}</title>"#);
        if corners.is_empty() {
            let radius = if marker == Marker::Dot { 2.0 } else { 4.5 };
            self.add(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" {style}</circle>"#));
        } else {
            let points: Vec<String> = corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
            self.add(format_args!(r#"<polygon points="{}" {style}</polygon>"#, points.join(" ")));
        }
    }

    /// Text with its middle line at y.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, size: f64, text: &str) {
        self.any_text(at, anchor, size, INK, 0.0, text);
    }

    /// Text in another color.
    pub fn colored_text(&mut self, at: (f64, f64), anchor: Anchor, size: f64, fill: &str, text: &str) {
        self.any_text(at, anchor, size, fill, 0.0, text);
    }

    /// Text turned about its point, by degrees; -90 reads upwards.
    pub fn turned_text(&mut self, at: (f64, f64), anchor: Anchor, size: f64, degrees: f64, text: &str) {
        self.any_text(at, anchor, size, INK, degrees, text);
    }

    fn any_text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: f64, fill: &str, degrees: f64, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let turn =
            if degrees == 0.0 { String::new() } else { format!(r#" transform="rotate({degrees} {x:.1} {y:.1})""#) };
        // Some viewers do not support dominant-baseline. A third of the size below the middle looks the same in all.
        let down = size * 0.35;
        let text = escape(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" dy="{down:.1}" font-size="{size:.1}" text-anchor="{anchor}" fill="{fill}"{turn}>{text}</text>"#
        ));
    }

    /// The document, on white, or on dark gray for readers who prefer dark pages.
    pub fn finish(self, description: &str) -> String {
        let Canvas { width, height, body } = self;
        let description = escape(description);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="sans-serif">
<title>{description}</title>
{DARK}
<rect class="paper" width="100%" height="100%" fill="white"/>
{body}</svg>
"#
        )
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

/// Text as XML content: markup escaped, and control characters, which XML cannot hold at all, replaced.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_the_document() {
        assert_eq!(escape("a<b> & \"c\"\u{0}"), "a&lt;b&gt; &amp; &quot;c&quot;\u{fffd}");
    }
}
