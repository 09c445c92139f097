//! The lines above a table.

/// The widest line; every terminal has this width.
const WIDTH: usize = 80;

/// Joins parts with commas, and begins a new line where one would be wider than 80 columns. A part that is wider than that has a separate line. The
/// last line ends in a line feed.
///
/// ```
/// use tightfit_report::lines;
/// assert_eq!(lines(["resnet18", "mini-batch 16"]), "resnet18, mini-batch 16\n");
/// ```
pub fn lines<S: AsRef<str>>(parts: impl IntoIterator<Item = S>) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for part in parts {
        let part = part.as_ref();
        let added = part.chars().count();
        match width {
            0 => width = added,
            _ if width + 2 + added <= WIDTH => {
                text += ", ";
                width += 2 + added;
            }
            _ => {
                text += "\n";
                width = added;
            }
        }
        text += part;
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_parts_before_they_are_too_wide() {
        let part = |width: usize| "x".repeat(width);
        for (widths, expected) in [
            (vec![39, 39], vec![80]),
            (vec![39, 40], vec![39, 40]),
            (vec![90, 10, 10], vec![90, 22]),
            (vec![10, 90, 10], vec![10, 90, 10]),
        ] {
            let text = lines(widths.into_iter().map(part));
            assert!(text.ends_with('\n'));
            assert_eq!(text.lines().map(|line| line.chars().count()).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
