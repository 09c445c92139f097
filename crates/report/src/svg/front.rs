//! One kernel's Pareto front: time against workspace, and under it how each point divides the mini-batch.
//!
//! ```text
//! time |1           each point of the front has its number;
//!      |  2
//!      |      3     the column of that number shows its micro-batches,
//!      +--------    one block each, colored by algorithm
//!       1  2  3
//! ```
//!
//! A block in slices along a spatial axis is cut from left to right: `|-|-|-|-|`, each slice as wide as its share.
//!
//! **Source**: Oyama et al. 2018, figures 6 and 10.

use tightfit_conv::candidate::Slices;
use tightfit_conv::{Algorithm, Candidate, Configuration};

use super::axis::{Axis, Frame};
use super::canvas::{Anchor, Canvas, GRAY, INK, Marker, TEXT, text_width};
use super::legend::{self, Entry};

/// Maximum number of columns; for a longer front they are spread evenly and include both ends.
const COLUMNS: usize = 16;
/// Width of a column with its labels, and of its blocks.
const SLOT: f64 = 66.0;
const BLOCK: f64 = 46.0;
/// Least height of a block that holds a number.
const READABLE: f64 = 13.0;
const SMALL: f64 = 10.0;
/// Least distance of the cuts between slices.
const CUT: f64 = 2.5;

/// Draws the front of one kernel, given by rising workspace as [`OptimizedKernel::front`] holds it.
///
/// Draws all points. At most 16 of them, evenly spread, also show their division.
///
/// [`OptimizedKernel::front`]: tightfit_profile::answer::OptimizedKernel::front
pub fn front(title: &str, front: &[Configuration]) -> String {
    let algorithms = algorithms(front);
    let color = |algorithm: &Algorithm| legend::color(algorithms.iter().position(|a| a == algorithm).unwrap_or(0));
    let entries: Vec<_> = algorithms.iter().map(|algorithm| Entry::area(algorithm.name(), color(algorithm))).collect();
    let shown = spread(front.len(), COLUMNS);

    let (left, right) = (90.0, 40.0);
    let width = (left + right + SLOT * shown.len() as f64).max(640.0);
    let curve = Frame { left, top: legend::head_height(&entries, width), width: width - left - right, height: 240.0 };
    let columns = Frame { top: curve.bottom() + 76.0, height: 220.0, ..curve };
    let mut canvas = Canvas::new(width, columns.bottom() + 62.0);
    legend::draw_head(title, &entries, width, &mut canvas);

    draw_curve(front, &shown, curve, &mut canvas);
    let batch = front.iter().map(Configuration::batch).max().unwrap_or(1);
    columns.draw_left(&Axis::of_samples("mini-batch [samples]", batch), &mut canvas);
    let slot = columns.width / shown.len().max(1) as f64;
    for (index, configuration) in shown.iter().map(|&index| &front[index]).enumerate() {
        let middle = columns.left + slot * (index as f64 + 0.5);
        let column = Frame { left: middle - BLOCK / 2.0, width: BLOCK, ..columns };
        draw_blocks(configuration, batch, column, color, &mut canvas);
        let below = columns.bottom() + 14.0;
        canvas.text((middle, below), Anchor::Middle, TEXT, &number(index));
        canvas.text((middle, below + 15.0), Anchor::Middle, SMALL, &configuration.workspace().to_string());
        canvas.text((middle, below + 30.0), Anchor::Middle, SMALL, &configuration.time().to_string());
    }
    canvas.line((columns.left, columns.bottom()), (columns.right(), columns.bottom()), INK);
    if front.is_empty() {
        canvas.text((curve.x(0.5), curve.y(0.5)), Anchor::Middle, TEXT, "no configuration");
    }
    canvas.finish(title)
}

/// The number that ties a point to its column.
fn number(index: usize) -> String {
    (index + 1).to_string()
}

/// Draws time against workspace: every point, with numbers for those `shown`.
fn draw_curve(front: &[Configuration], shown: &[usize], frame: Frame, canvas: &mut Canvas) {
    let time = Axis::of_times("time", front.iter().map(Configuration::time).max().unwrap_or_default());
    let workspace = Axis::of_doubling_bytes("workspace", front.iter().map(Configuration::workspace));
    frame.draw_bottom(&workspace, canvas);
    frame.draw_left(&time, canvas);
    let points: Vec<_> =
        front.iter().map(|c| (frame.x(workspace.at_bytes(c.workspace())), frame.y(time.at_time(c.time())))).collect();
    canvas.path(&stairs(&points), GRAY, 1);
    for (index, (&point, configuration)) in points.iter().zip(front).enumerate() {
        let marker = if shown.contains(&index) { Marker::Circle } else { Marker::Dot };
        canvas.marker(marker, point, INK, &describe(configuration));
    }
    let mut free = f64::NEG_INFINITY;
    for (name, (x, y)) in shown.iter().enumerate().map(|(i, &index)| (number(i), points[index])) {
        // Points may be closer than their numbers are wide; tooltips still distinguish them.
        let half = text_width(&name, SMALL) / 2.0;
        if x - half >= free {
            canvas.text((x + 7.0, y - 9.0), Anchor::Middle, SMALL, &name);
            free = x + half + 4.0;
        }
    }
}

/// Draws one block per micro-batch, or one per run of equal micro-batches if they are too small for a number.
fn draw_blocks(
    configuration: &Configuration,
    batch: usize,
    column: Frame,
    color: impl Fn(&Algorithm) -> &'static str,
    canvas: &mut Canvas,
) {
    let parts = configuration.parts();
    let mut below = 0;
    let tooltip = describe(configuration);
    for run in parts.chunk_by(|a, b| a.micro_batch == b.micro_batch && a.algorithm == b.algorithm) {
        let Candidate { micro_batch: size, ref algorithm, .. } = run[0];
        let apart = column.height * size as f64 / batch as f64 >= READABLE;
        let (blocks, samples) = if apart { (run.len(), size) } else { (1, size * run.len()) };
        let label = if samples == size { size.to_string() } else { format!("{} x {size}", run.len()) };
        for _ in 0..blocks {
            let height = column.height * samples as f64 / batch as f64;
            let top = column.y((below + samples) as f64 / batch as f64);
            let block = Frame { top, height, ..column };
            match algorithm.slices() {
                Some(slices) => draw_slices(slices, &label, block, &color, &tooltip, canvas),
                None => {
                    let fill = color(algorithm);
                    canvas.rect((block.left, top), (block.width, (height - 1.0).max(0.5)), fill, &tooltip);
                    draw_labels(&[&label], block, legend::ink_on(fill), canvas);
                }
            }
            below += samples;
        }
    }
}

/// Draws a block in slices, with cuts between them in its lower third; slices too thin to be cut apart become a pattern.
fn draw_slices(
    slices: &Slices,
    samples: &str,
    block: Frame,
    color: impl Fn(&Algorithm) -> &'static str,
    tooltip: &str,
    canvas: &mut Canvas,
) {
    let bottom = block.bottom() - f64::min(1.0, block.height / 2.0);
    let (mut left, mut cuts) = (block.left, Vec::new());
    for (times, extent, algorithm) in slices.runs() {
        let width = block.width * (times * extent) as f64 / slices.extent() as f64;
        canvas.rect((left, block.top), (width, bottom - block.top), color(algorithm), tooltip);
        let parts = f64::min(times as f64, (width / CUT).floor().max(1.0)) as usize;
        cuts.extend((0..parts).map(|part| left + width * part as f64 / parts as f64));
        left += width;
    }
    let lower = f64::max(block.height / 3.0, 8.0);
    let upper = if block.height - lower >= READABLE { block.height - lower } else { 0.0 };
    for x in cuts.into_iter().skip(1) {
        canvas.line((x, block.top + upper), (x, bottom), "white");
    }
    let widest = slices.runs().max_by_key(|(times, extent, _)| times * extent);
    let ink = legend::ink_on(widest.map_or(INK, |(.., algorithm)| color(algorithm)));
    draw_labels(&[samples, &describe_slices(slices)], Frame { height: upper, ..block }, ink, canvas);
}

/// The number and size of slices: `16 x h16`, or `17 x h1-3` if they differ.
fn describe_slices(slices: &Slices) -> String {
    let extents = || slices.runs().map(|(_, extent, _)| extent);
    let (least, most) = (extents().min().unwrap_or_default(), extents().max().unwrap_or_default());
    let most = if most == least { String::new() } else { format!("-{most}") };
    format!("{} x {}{least}{most}", slices.len(), slices.dimension())
}

/// Writes as many of the labels into a block as fit, the last ones first, small enough for its width.
fn draw_labels(labels: &[&str], block: Frame, ink: &str, canvas: &mut Canvas) {
    let lines = labels.len().min((block.height / READABLE) as usize);
    for (line, label) in labels[labels.len() - lines..].iter().enumerate() {
        let size = f64::min(SMALL, SMALL * block.width / text_width(label, SMALL));
        let y = block.top + block.height / lines as f64 * (line as f64 + 0.5);
        canvas.colored_text((block.left + block.width / 2.0, y), Anchor::Middle, size, ink, label);
    }
}

fn describe(configuration: &Configuration) -> String {
    format!("{configuration}: {}, {}", configuration.time(), configuration.workspace())
}

/// The algorithms of all configurations and their slices, sorted by name, so that colors do not depend on the order of the
/// points.
fn algorithms(front: &[Configuration]) -> Vec<Algorithm> {
    let parts = front.iter().flat_map(|configuration| configuration.parts());
    let mut algorithms: Vec<_> = parts.flat_map(|part| part.algorithm.plain()).cloned().collect();
    algorithms.sort();
    algorithms.dedup();
    algorithms
}

/// Up to `most` of `0..count`, evenly spread, including both ends.
fn spread(count: usize, most: usize) -> Vec<usize> {
    if count <= most { (0..count).collect() } else { (0..most).map(|i| i * (count - 1) / (most - 1)).collect() }
}

/// The best time for every workspace, as a step function.
fn stairs(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    corners.chain(points.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    use tightfit_profile::answer::samples;

    use super::super::well_formed::{check, text_of};
    use super::*;

    #[test]
    fn long_fronts_show_both_ends() {
        for count in [0, 1, 16, 17, 300] {
            let shown = spread(count, 16);
            assert_eq!(shown.len(), count.min(16));
            assert!(shown.windows(2).all(|pair| pair[0] < pair[1]), "{shown:?}");
            assert_eq!(shown.last().copied(), count.checked_sub(1));
        }
    }

    #[test]
    fn blocks_in_slices_are_cut_and_colored_by_the_algorithms_of_their_slices() {
        let same = samples::configuration(&[(1, "4 x h8 gemm", 40, 2)]);
        let edges = samples::configuration(&[(1, "h1 gemm + 15 x h3 fft + h2 gemm", 30, 9)]);
        let whole = samples::configuration(&[(1, "direct", 90, 0)]);
        let picture = super::front("conv2 forward", &[whole.clone(), same.clone(), edges.clone()]);
        check(&picture, &["direct", "fft", "gemm", "4 x h8", "17 x h1-3"]);
        for sliced in ["4 x h8 gemm", "h1 gemm + 15 x h3 fft + h2 gemm"] {
            assert!(!text_of(&picture).iter().any(|text| text == sliced), "a name for each slicing fills the legend");
        }
        let cuts = |configuration: &Configuration| {
            super::front("one", std::slice::from_ref(configuration)).matches(r#"stroke="white"/>"#).count()
        };
        assert_eq!([cuts(&whole), cuts(&same)], [0, 3]);
        let most = BLOCK / CUT;
        assert!(cuts(&edges) > 3 && cuts(&edges) as f64 <= most + 2.0, "{}", cuts(&edges));
        // A block cannot have more cuts than fit its width, however many slices it has.
        assert!(cuts(&samples::configuration(&[(1, "1000000 x d2 fft", 1, 1)])) as f64 <= most);
        // Small micro-batches in slices share a block, like small ones without slices. Thin blocks have no words.
        let small = samples::configuration(&[(1, "4 x h8 gemm", 1, 1); 64]);
        check(&super::front("small", &[small]), &["64 x 1", "4 x h8"]);
        let thin = samples::configuration(&[(1, "4 x h8 gemm", 1, 1), (200, "fft", 1, 1)]);
        check(&super::front("thin", &[thin]), &["200"]);
    }

    #[test]
    fn blocks_are_micro_batches_or_runs_of_small_ones() {
        let front = [
            samples::configuration(&[(1, "gemm", 4, 0); 256]),
            samples::configuration(&[(100, "fft", 300, 9), (100, "fft", 300, 9), (56, "gemm", 100, 2)]),
        ];
        let picture = super::front("conv2 forward", &front);
        assert!(picture.contains(">256 x 1<") && picture.contains(">56<"));
        assert_eq!(picture.matches(">100<").count(), 2);
    }
}
