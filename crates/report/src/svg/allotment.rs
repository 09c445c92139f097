//! The share of each kernel in a network's workspace, and the time that it saves.
//!
//! ```text
//! total   [ conv1 | conv2            | conv3 ]   ¦ total
//!
//!         workspace             time
//! conv1   ###                   ######====       chosen (#) over undivided (=)
//! conv2   ############          ###========
//! ```
//!
//! One row per kernel keeps names readable for any number of kernels.
//!
//! **Source**: Oyama et al. 2018, figure 12.

use tightfit_conv::candidate::Limit;
use tightfit_conv::{Configuration, Operation};
use tightfit_profile::answer::{NotUndivided, Optimized, OptimizedKernel};
use tightfit_units::Bytes;

use super::axis::{Axis, Frame};
use super::canvas::{Anchor, Canvas, INK, TEXT, text_width};
use super::legend::{self, Entry};

const ROW: f64 = 20.0;
const PANEL: f64 = 340.0;
const SMALL: f64 = 10.0;
const UNDIVIDED: &str = "#cccccc";

/// Draws workspace and time of every kernel over the undivided kernel's. A limit per kernel that is near is a dashed line.
///
/// Bars of configurations in slices along space are striped. Under one total ([`Limit::Total`]) a bar above shows how it
/// is shared, with the total as a dashed line.
pub fn allotment(title: &str, optimized: &Optimized) -> String {
    let mut entries: Vec<_> =
        Operation::ALL.map(|operation| Entry::area(operation.name(), color(operation))).into_iter().collect();
    entries.push(Entry::area("undivided", UNDIVIDED));
    if optimized.kernels.iter().any(|kernel| kernel.configuration.is_sliced()) {
        entries.push(Entry::slices());
    }

    let kernels = &optimized.kernels;
    let shared = matches!(optimized.limit, Limit::Total(_));
    let both = || kernels.iter().flat_map(|kernel| kernel.undivided.iter().chain([&kernel.configuration]));
    let most = both().map(Configuration::workspace).max().unwrap_or_default();
    // A limit far above the workspace in use would squeeze the bars.
    let limit = Some(optimized.limit.bytes()).filter(|&limit| !shared && limit.0 / 4 <= most.0);
    let workspace = Axis::of_bytes("workspace", most.max(limit.unwrap_or_default()));
    let time = Axis::of_times("time", both().map(Configuration::time).max().unwrap_or_default());

    let left = 40.0 + kernels.iter().map(|kernel| text_width(&kernel.layer, TEXT)).fold(60.0, f64::max);
    // The note after a bar must stay inside the picture for any length of the bar.
    let notes = kernels.iter().filter_map(|kernel| {
        let note = note(*kernel.undivided.as_ref().err()?);
        Some(PANEL * time.at_time(kernel.configuration.time()) + text_width(note, SMALL) + 12.0)
    });
    let width = left + PANEL + 50.0 + notes.fold(PANEL + 50.0, f64::max);
    let top = legend::head_height(&entries, width) + if shared { 84.0 } else { 0.0 };
    let workspace_panel = Frame { left, top, width: PANEL, height: ROW * kernels.len().max(2) as f64 + 6.0 };
    let time_panel = Frame { left: workspace_panel.right() + 50.0, ..workspace_panel };
    let mut canvas = Canvas::new(width, workspace_panel.bottom() + 52.0);
    legend::draw_head(title, &entries, width, &mut canvas);
    if shared {
        let frame = Frame { top: top - 84.0, width: time_panel.right() - left, height: 22.0, ..workspace_panel };
        draw_shares(optimized, frame, &mut canvas);
    }

    workspace_panel.draw_bottom(&workspace, &mut canvas);
    time_panel.draw_bottom(&time, &mut canvas);

    for (index, kernel) in kernels.iter().enumerate() {
        let y = top + 3.0 + ROW * (index as f64 + 0.5);
        // The layer's name once per run of its kernels.
        if index == 0 || kernels[index - 1].layer != kernel.layer {
            canvas.text((left - 8.0, y), Anchor::End, TEXT, &kernel.layer);
        }
        draw_row(kernel, y, workspace_panel, |c| workspace.at_bytes(c.workspace()), &mut canvas);
        draw_row(kernel, y, time_panel, |c| time.at_time(c.time()), &mut canvas);
        if let Err(why) = kernel.undivided {
            let end = time_panel.x(time.at_time(kernel.configuration.time()));
            canvas.text((end + 6.0, y), Anchor::Start, SMALL, note(why));
        }
    }
    if let Some(limit) = limit {
        let x = workspace_panel.x(workspace.at_bytes(limit));
        canvas.dashed((x, top - 6.0), (x, workspace_panel.bottom()), INK);
    }
    for frame in [workspace_panel, time_panel] {
        canvas.line((frame.left, frame.top), (frame.left, frame.bottom()), INK);
    }
    if kernels.is_empty() {
        canvas.text((workspace_panel.x(0.5), workspace_panel.y(0.5)), Anchor::Middle, TEXT, "no kernels");
    }
    canvas.finish(title)
}

/// The note behind the bar of a kernel without an undivided configuration.
fn note(why: NotUndivided) -> &'static str {
    match why {
        NotUndivided::OverLimit => "nothing fits undivided",
        NotUndivided::NotMeasured => "not measured undivided",
    }
}

fn color(operation: Operation) -> &'static str {
    legend::color(operation as usize)
}

/// Draws the chosen configuration as a slim bar over the undivided one.
fn draw_row(
    kernel: &OptimizedKernel,
    y: f64,
    frame: Frame,
    place: impl Fn(&Configuration) -> f64,
    canvas: &mut Canvas,
) {
    let mut bar = |configuration: &Configuration, height: f64, fill| {
        let tooltip = describe(kernel, configuration);
        let (at, size) = ((frame.left, y - height / 2.0), (frame.width * place(configuration), height));
        canvas.rect(at, size, fill, &tooltip);
        if configuration.is_sliced() {
            canvas.stripe(at, size);
        }
    };
    if let Ok(undivided) = &kernel.undivided {
        bar(undivided, ROW - 4.0, UNDIVIDED);
    }
    bar(&kernel.configuration, ROW / 2.0, color(kernel.problem.operation()));
}

/// All workspaces end to end, and the total as a dashed line.
fn draw_shares(optimized: &Optimized, frame: Frame, canvas: &mut Canvas) {
    let (used, total) = (optimized.workspace(), optimized.limit.finite());
    let title = format!("workspace of all kernels: {used} of {}", optimized.limit.bytes());
    let axis = Axis::of_bytes(&title, used.max(total.unwrap_or_default()));
    frame.draw_bottom(&axis, canvas);
    let mut before = Bytes::ZERO;
    for kernel in &optimized.kernels {
        let (share, fill) = (kernel.configuration.workspace(), color(kernel.problem.operation()));
        let (from, to) = (frame.x(axis.at_bytes(before)), frame.x(axis.at_bytes(before + share)));
        let gap = if to - from > 3.0 { 1.0 } else { 0.0 };
        let tooltip = describe(kernel, &kernel.configuration);
        canvas.rect((from, frame.top + 2.0), (to - from - gap, 20.0), fill, &tooltip);
        if to - from > text_width(&kernel.layer, SMALL) + 6.0 {
            let middle = ((from + to) / 2.0, frame.top + 12.0);
            canvas.colored_text(middle, Anchor::Middle, SMALL, legend::ink_on(fill), &kernel.layer);
        }
        before = before + share;
    }
    if let Some(total) = total {
        let x = frame.x(axis.at_bytes(total));
        canvas.dashed((x, frame.top - 4.0), (x, frame.bottom()), INK);
    }
}

fn describe(kernel: &OptimizedKernel, configuration: &Configuration) -> String {
    let (time, workspace) = (configuration.time(), configuration.workspace());
    format!("{} {}: {configuration}, {time}, {workspace}", kernel.layer, kernel.problem.operation())
}

#[cfg(test)]
mod tests {
    use tightfit_profile::answer::samples;

    use super::super::well_formed::check;
    use super::*;

    #[test]
    fn kernels_in_slices_are_striped() {
        let mut optimized = samples::network(3);
        assert!(!super::allotment("whole", &optimized).contains("in slices"));
        optimized.limit = Limit::Total(Bytes::gib(8));
        optimized.kernels[1].configuration = samples::configuration(&[(1, "4 x h8 gemm", 4000, 64)]);
        let picture = super::allotment("sliced", &optimized);
        check(&picture, &["in slices along space"]);
        assert_eq!(picture.matches("<path").count(), 3, "in the legend, its workspace and its time");
    }
}
