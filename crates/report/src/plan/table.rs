//! The plan as a table: a head with the request, one line per layer, the attempts, and the totals.

use tightfit_conv::Device;
use tightfit_plan::{Accounting, Kind, MapTreatment, Mode, Plan, Policy};
use tightfit_units::{Bytes, Nanos};

use super::grid;
use crate::{Align, Grid, Terminal, lines, rounded};

/// Writes the plan as a table for a terminal; every line ends in a line feed. The times were measured on `device`.
pub fn table(plan: &Plan, device: &Device, terminal: Terminal) -> String {
    head(plan, device)
        + "\n"
        + &grid(plan).table(terminal)
        + &fates(plan, terminal)
        + "\n"
        + &attempts(plan, terminal)
        + "\n"
        + &totals(plan, terminal)
}

/// The table without the rows of layers.
pub(super) fn summary(plan: &Plan, device: &Device) -> String {
    head(plan, device) + "\n" + &attempts(plan, Terminal::default()) + "\n" + &totals(plan, Terminal::default())
}

fn head(plan: &Plan, device: &Device) -> String {
    let Plan { network, batch, types, options, .. } = plan;
    let what = if plan.mode == Mode::Inference { "inference" } else { "training" };
    let names =
        [network.clone(), what.to_owned(), format!("mini-batch {batch}"), types.to_string(), device.to_string()];
    let mut request = vec![format!("policy {}", options.policy), format!("algorithms {}", options.algorithms)];
    request.extend((!options.divide).then(|| "undivided".to_owned()));
    request.push(format!("budget {}", options.budget));
    request.extend((options.host_budget != Bytes::UNLIMITED).then(|| format!("host budget {}", options.host_budget)));
    let answer = [
        format!("peak {} (plain {})", plan.peak, plan.baseline),
        format!("step {} ({})", plan.step_time, over_plain(plan)),
        format!("least budget {}", plan.min_feasible.rounded_up()),
    ];
    lines(names) + &lines(request) + &lines(answer)
}

/// The time of a step compared with plain's.
fn over_plain(plan: &Plan) -> String {
    let (overhead, of) = (plan.overhead(), if plan.overhead() < 0.0 { "under" } else { "over" });
    format!("{} {of} plain", percent(overhead.abs()))
}

fn percent(share: f64) -> String {
    rounded(share * 100.0, 1) + "%"
}

/// Explains the words in the column `map` and the times in the last column; empty if neither is used.
fn fates(plan: &Plan, terminal: Terminal) -> String {
    let words = [
        (MapTreatment::Kept, "stays on the device"),
        (MapTreatment::Offloaded, "copied to the host and back"),
        (MapTreatment::Recomputed, "computed again before it is read again"),
        (MapTreatment::Released, "nothing reads it again"),
    ];
    let words: Vec<String> = words
        .into_iter()
        .filter(|(fate, _)| plan.maps.iter().any(|map| map.fate == *fate))
        .map(|(fate, meaning)| format!("{}: {meaning}", fate.name()))
        .collect();
    let reuse = plan.maps.iter().any(|map| map.reuse_distance.is_some_and(|time| time > Nanos::ZERO));
    let legend = [
        ("map", words.join(", ")),
        ("reuse", if reuse { "from its last forward use until it is read again".to_owned() } else { String::new() }),
    ];
    let lines: String = legend
        .into_iter()
        .filter(|(_, meaning)| !meaning.is_empty())
        .map(|(name, meaning)| total(name, &meaning, terminal))
        .collect();
    if lines.is_empty() { lines } else { "\n".to_owned() + &lines }
}

/// The policy's attempts, with an explanation of their letters; empty if it had no choice.
fn attempts(plan: &Plan, terminal: Terminal) -> String {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid =
        Grid::new([("attempt", left), ("device", right), ("host", right), ("time", right), ("outcome", left)]);
    for decision in &plan.decisions {
        let outcome = match (decision.taken, decision.fits) {
            (true, _) => "chosen",
            (false, true) => "fits",
            (false, false) => "does not fit",
        };
        grid.push([
            decision.attempt.clone(),
            decision.needed.to_string(),
            decision.host.to_string(),
            decision.time.map(|time| time.to_string()).unwrap_or_default(),
            outcome.to_owned(),
        ]);
    }
    if plan.decisions.is_empty() {
        return String::new();
    }
    let mut legend: Vec<&str> = [
        ("(m)", "(m): algorithms with the least workspace"),
        ("(p)", "(p): the fastest algorithms"),
        ("(fit)", "(fit): the fastest algorithms that fit"),
    ]
    .into_iter()
    .filter(|(letters, _)| plan.decisions.iter().any(|decision| decision.attempt.contains(letters)))
    .map(|(_, meaning)| meaning)
    .collect();
    legend.push("each is explained by `tightfit plan --help`");
    grid.table(terminal) + "\n" + &total("attempts", &legend.join(", "), terminal)
}

/// Columns of the names of totals.
const NAME: usize = 16;

/// A total with its name, on several lines if it is wider than the terminal; broken behind commas, if that suffices.
fn total(name: &str, value: &str, terminal: Terminal) -> String {
    let width = terminal.width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(NAME));
    let mut lines = vec![String::new()];
    let mut add = |piece: &str| match lines.last_mut() {
        Some(last) if last.is_empty() || last.chars().count() + 1 + piece.chars().count() <= width => {
            *last += if last.is_empty() { "" } else { " " };
            *last += piece;
        }
        _ => lines.push(piece.to_owned()),
    };
    for piece in value.split_inclusive(',').map(str::trim) {
        if piece.chars().count() <= width { add(piece) } else { piece.split(' ').for_each(&mut add) }
    }
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    names.zip(lines).map(|(name, line)| format!("{name:<NAME$}{line}\n")).collect()
}

fn totals(plan: &Plan, terminal: Terminal) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &total(name, &value, terminal);
    line("arena", format!("{}, peak live {} ({} wasted)", plan.peak, plan.most_live, percent(plan.fragmentation())));
    line("average", format!("{} over time, {} over computations", plan.average, plan.layer_average));
    let kinds = Kind::ALL.into_iter().map(|kind| (kind, plan.at_most.get(kind)));
    let kinds: Vec<String> = kinds
        .filter(|(_, bytes)| *bytes > Bytes::ZERO)
        .map(|(kind, bytes)| format!("{} {bytes}", kind.name()))
        .collect();
    line("at peak", kinds.join(", "));
    line("host", format!("{}, {} offloaded per step", plan.host, plan.offloaded));
    line(
        "least budget",
        format!(
            "{} with this policy (peak at {}), {} with any policy{}",
            plan.min_feasible.rounded_up(),
            plan.binding_layer,
            plan.least.rounded_up(),
            if plan.options.policy == Policy::Optimal { "" } else { " but optimal" }
        ),
    );
    if let Some(proven) = plan.proven {
        // Only divisible plans could run in numbers of parts other than the tried ones.
        let among =
            if plan.options.divide { ", for plans with at most one stretch in 2, 4, 8 or 16 parts" } else { "" };
        line("", format!("proven minimum {}{among}", proven.rounded_down()));
    }
    let less = 1.0 - plan.peak.0 as f64 / plan.baseline.0.max(1) as f64;
    let saved = if less > 0.0 { format!("; the plan saves {}", percent(less)) } else { String::new() };
    line("plain", format!("{} without a plan, with the fastest algorithms{saved}", plan.baseline));
    if plan.mode == Mode::Training {
        let Accounting { maximum, average, baseline } = &plan.paper;
        line(
            "as in the paper",
            format!(
                "{maximum} at most ({} saved), {average} on average ({} saved), baseline {baseline}",
                percent(plan.paper.maximum_saved()),
                percent(plan.paper.average_saved()),
            ),
        );
    }
    line("step", format!("{}, {}'s {}", plan.step_time, over_plain(plan), plan.baseline_time));
    line("copies", format!("{}, adding {} to the step", plan.simulation.copying, plan.simulation.exposed));
    if let Some(in_parts) = &plan.in_parts {
        // The input computes nothing.
        let begins = plan.layers.iter().take(2).any(|layer| layer.name == in_parts.first);
        let is_all = begins && plan.layers.last().is_some_and(|layer| layer.name == in_parts.last);
        let known = if is_all { ": gradient accumulation" } else { "" };
        line("in parts", in_parts.words() + known);
    }
    if plan.schedule.lanes() > 1 {
        line(
            "lanes",
            format!("branches run side by side on {} streams; no bound is known for such plans", plan.schedule.lanes()),
        );
    }
    if plan.recomputed > Nanos::ZERO {
        line("recomputed", plan.recomputed.to_string());
    }
    if let (Some(gap), Some(bound)) = (plan.gap, plan.bound) {
        line("bound", format!("{bound} for {}", plan.bounded.words(plan.in_parts.is_some())));
        line("gap", format!("at most {:.2}% above that", gap * 100.0));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn totals_are_no_wider_than_the_terminal() {
        let narrow = Terminal { width: Some(80), ..Terminal::default() };
        let lines =
            total("at peak", "weights 97.7 MiB, feature-maps 2.6 GiB, gradient-maps 73.5 MiB, saved 207.5 KiB", narrow);
        assert_eq!(
            lines,
            "at peak         weights 97.7 MiB, feature-maps 2.6 GiB, gradient-maps 73.5 MiB,\n                saved 207.5 KiB\n"
        );
        let long = "any plan that runs whole operations in this order and keeps what it copies back until its next use";
        assert!(total("bound", long, narrow).lines().all(|line| line.len() <= 80));
        assert_eq!(total("bound", long, Terminal::default()).lines().count(), 1);
    }

    #[test]
    fn the_whole_table() {
        insta::assert_snapshot!(table(&samples::small(), &samples::device(), Terminal::default()));
    }

    #[test]
    fn attempts_are_listed() {
        let plan = samples::planned("vgg16", 8, tightfit_plan::Policy::VdnnDynamic, Bytes::gib(3));
        let text = table(&plan, &samples::device(), Terminal::default());
        assert!(text.contains("\nall(m) ") && text.contains(" chosen\n"), "{text}");
        assert!(text.contains("\nattempts        (m): algorithms with the least workspace, (p): "), "{text}");
        assert!(text.contains("\nmap             kept: stays on the device\n"), "{text}");
        assert_eq!(grid(&plan).csv().lines().count(), 1 + plan.layers.len());
    }
}
