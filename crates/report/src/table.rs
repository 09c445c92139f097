//! The result as a table: a head with the request, one line per kernel, and the totals.

use tightfit_conv::candidate::Limit;
use tightfit_conv::execute::{Overlapped, Verified};
use tightfit_profile::answer::{NotUndivided, Optimized, OptimizedKernel};
use tightfit_units::{Bytes, Nanos};

use super::{Align, Grid, Slower, Terminal, count, lines, slower};

/// Writes the result as a table for a terminal of at least 80 columns; every line ends in a line feed.
///
/// The column `gain` is a kernel's speedup over undivided, `undivided` if the kernel is not divided, `fits now` if
/// nothing fits undivided, or `-` if nothing was measured undivided. Error columns appear if any kernel was run and compared.
pub fn table(optimized: &Optimized, terminal: Terminal) -> String {
    head(optimized) + "\n" + &kernels(optimized, terminal) + "\n" + &totals(optimized)
}

fn head(optimized: &Optimized) -> String {
    let Optimized { network, batch, device, types, layout, sizes, limit, .. } = optimized;
    let batch = batch.map(|batch| format!("mini-batch {batch}"));
    let limit = match limit {
        Limit::PerKernel(bytes) => format!("workspace limit {bytes} per kernel"),
        Limit::Total(bytes) => format!("total workspace {bytes}"),
        Limit::One(bytes) => format!("one workspace of {bytes}"),
    };
    let what = [Some(network.clone()), batch, Some(format!("{types} {layout}")), Some(device.to_string())];
    lines(what.into_iter().flatten()) + &lines([format!("sizes {sizes}"), limit])
}

fn kernels(optimized: &Optimized, terminal: Terminal) -> String {
    let verified = optimized.kernels.iter().any(|kernel| kernel.verification.is_some());
    let mut columns = vec![
        ("layer", Align::Left),
        ("operation", Align::Left),
        ("configuration", Align::Left),
        ("time [µs]", Align::Right),
        ("workspace", Align::Right),
        ("gain", Align::Right),
    ];
    if verified {
        columns.extend([("error vs undivided", Align::Right), ("error vs f64", Align::Right)]);
    }
    let mut grid = Grid::new(columns);
    for kernel in &optimized.kernels {
        let mut row = vec![
            kernel.layer.clone(),
            kernel.problem.operation().to_string(),
            kernel.configuration.to_string(),
            format!("{:.1}", kernel.configuration.time().as_micros()),
            kernel.configuration.workspace().to_string(),
            gain(kernel),
        ];
        if let Some(seen) = &kernel.verification {
            row.extend([seen.error_undivided.map_or("-".to_owned(), error), error(seen.error_reference)]);
        }
        grid.push(row);
    }
    grid.table(terminal)
}

fn gain(kernel: &OptimizedKernel) -> String {
    match &kernel.undivided {
        Err(NotUndivided::OverLimit) => "fits now".to_owned(),
        Err(NotUndivided::NotMeasured) => "-".to_owned(),
        Ok(undivided) if *undivided == kernel.configuration => "undivided".to_owned(),
        Ok(_) => kernel.speedup().map_or("-".to_owned(), |speedup| format!("{speedup:.2}x")),
    }
}

fn error(error: f64) -> String {
    if error == 0.0 { "0".to_owned() } else { format!("{error:.1e}") }
}

fn totals(optimized: &Optimized) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<12}{value}\n");
    let divided = optimized.kernels.iter().filter(|kernel| kernel.configuration.is_divided()).count();

    if let Some(time) = optimized.undivided_time() {
        line("undivided", time.to_string());
    }
    if let Some((kernels, _)) = without(optimized, NotUndivided::OverLimit) {
        line("undivided", format!("does not fit: {kernels}"));
    }
    if let Some((kernels, batch)) = without(optimized, NotUndivided::NotMeasured) {
        line("undivided", format!("not measured at {}: {kernels};", count(batch, "sample")));
        line("", format!("`tightfit profile NETWORK --batch {batch}` measures it"));
    }
    let speedup = optimized.speedup().map(|speedup| format!(", {speedup:.2}x as fast")).unwrap_or_default();
    line(
        "divided",
        format!("{}{speedup} ({divided} of {} divided)", optimized.time(), count(optimized.kernels.len(), "kernel")),
    );
    if let Some(time) = optimized.measured_time() {
        let gain = match optimized.undivided_measured_time() {
            Some(undivided) => format!(", undivided {undivided}, {:.2}x as fast", undivided.ratio(time)),
            None => String::new(),
        };
        line("run", format!("{time}{gain}"));
        let is_slower = optimized.undivided_measured_time().is_some_and(|undivided| undivided < time);
        for (place, said) in slowed_down(optimized).into_iter().filter(|_| is_slower).enumerate() {
            line(if place == 0 { "slower" } else { "" }, said);
        }
    }
    let compared: Vec<bool> = optimized
        .kernels
        .iter()
        .filter_map(|kernel| kernel.verification.as_ref().and_then(Verified::is_of_class))
        .collect();
    if !compared.is_empty() {
        let within = compared.iter().filter(|within| **within).count();
        let (all, most) = (compared.len(), Verified::MOST_OVER_CLASS);
        line("accuracy", format!("{within} of {all} within {most}x the error of undivided algorithms of their class"));
    }
    let least =
        optimized.least_workspace.map(|least| format!(", at least {} needed", least.rounded_up())).unwrap_or_default();
    let scope = if let Limit::One(_) = optimized.limit { "shared" } else { "in total" };
    line("workspace", format!("{} {scope}{least}", optimized.workspace()));
    if let Some(needs) = optimized.needs() {
        let [limit, each, one] = [needs.limit, needs.per_kernel, needs.one].map(Bytes::rounded_up);
        // Kernels were measured only for the total, so less may be enough.
        line(
            "as fast",
            format!("with at most {limit} per kernel ({each} in total), or one workspace of at most {one}"),
        );
    }
    let overlapped = &optimized.overlapped;
    if !overlapped.is_empty() {
        let sum = |time: fn(&Overlapped) -> Nanos| overlapped.iter().map(time).sum::<Nanos>();
        let (time, alone) = (sum(|seen| seen.time), sum(|seen| seen.alone));
        let kernels = count(overlapped.iter().map(|seen| seen.kernels.len()).sum(), "kernel");
        let groups = count(overlapped.len(), "group");
        line("concurrent", format!("{kernels} in {groups}: {time}, sequential {alone}"));
    }
    match (optimized.gap, optimized.limit) {
        (0.0, Limit::Total(_)) => line("gap", "0, proven optimal".to_owned()),
        (0.0, _) => {}
        (gap, _) => line("gap", format!("at most {:.4}% above the least possible time", gap * 100.0)),
    }
    if let (Some(stop), true) = (optimized.stop, optimized.gap > 0.0) {
        line("search", stop.to_string());
    }
    let profiling = &optimized.profiling;
    line("profiling", format!("{}, {}", profiling.time, count(profiling.measurements(), "measurement")));
    text
}

/// The kernels that took longer divided than undivided. This can happen to micro-batches that were timed back to back.
fn slowed_down(optimized: &Optimized) -> Vec<String> {
    let within = match optimized.limit {
        Limit::PerKernel(bytes) | Limit::One(bytes) | Limit::Total(bytes) => format!("divided within {bytes}"),
    };
    let of_kernel = |kernel: &OptimizedKernel| {
        let seen = kernel.verification.as_ref().filter(|_| kernel.configuration.is_divided())?;
        Some(Slower {
            kernel: format!("{} {}", kernel.layer, kernel.problem.operation()),
            factor: seen.time.ratio(seen.undivided_time?),
            now: within.clone(),
            instead: "undivided".to_owned(),
        })
    };
    slower(optimized.kernels.iter().filter_map(of_kernel).collect())
}

/// The first kernel without an undivided configuration for this reason and the number of others, and its mini-batch.
fn without(optimized: &Optimized, why: NotUndivided) -> Option<(String, usize)> {
    let mut kernels = optimized.kernels.iter().filter(|kernel| kernel.undivided == Err(why));
    let first = kernels.next()?;
    let more = match kernels.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some((format!("{} {}{more}", first.layer, first.problem.operation()), first.problem.batch()))
}

#[cfg(test)]
mod tests {
    use tightfit_profile::answer::samples;

    use super::*;

    const WIDE: Terminal = Terminal { width: Some(100), styled: false };

    #[test]
    fn a_limit_per_kernel() {
        insta::assert_snapshot!(table(&samples::alexnet(), WIDE), @r#"
        alexnet, mini-batch 256, f32 nchw, NVIDIA H200 (cudnn 9.19.0)
        sizes fit, workspace limit 64 MiB per kernel

        layer  operation  configuration                  time [µs]  workspace       gain
        ---------------------------------------------------------------------------------
        conv1  forward    256 implicit-gemm                 2000.0      8 MiB  undivided
        conv2  forward    2 x 100 fft + 56 winograd-4x4     4000.0     48 MiB      1.75x

        undivided   9.00 ms
        divided     6.00 ms, 1.50x as fast (1 of 2 kernels divided)
        workspace   56 MiB in total
        profiling   12.3 s, 456 measurements
        "#);
    }

    #[test]
    fn verified_with_a_kernel_that_fits_nothing_undivided() {
        insta::assert_snapshot!(table(&samples::verified(), WIDE), @r#"
        alexnet, mini-batch 256, f32 nchw, NVIDIA H200 (cudnn 9.19.0)
        sizes fit, total workspace 120 MiB

        layer  operation  configuration                     time  workspace       gain   error vs    error
                                                            [µs]                        undivided   vs f64
        ---------------------------------------------------------------------------------------------------
        conv1  forward    256 implicit-gemm               2000.0      8 MiB  undivided          0        0
        conv2  forward    2 x 100 fft + 56 winograd-4x4   4000.0     48 MiB   fits now          -   5.0e-6

        undivided   does not fit: conv2 forward
        divided     6.00 ms (1 of 2 kernels divided)
        run         6.60 ms
        accuracy    2 of 2 within 2x the error of undivided algorithms of their class
        workspace   56 MiB in total, at least 1 MiB needed
        gap         at most 0.0125% above the least possible time
        search      ended at its limit of states
        profiling   12.3 s, 456 measurements
        "#);
    }

    #[test]
    fn kernels_slower_than_undivided_are_named() {
        let mut optimized = samples::verified();
        optimized.limit = Limit::PerKernel(Bytes(1));
        optimized.kernels[1].undivided = samples::alexnet().kernels[1].undivided.clone();
        let of_second = |undivided: u64| {
            let mut optimized = optimized.clone();
            let seen = optimized.kernels[1].verification.as_mut().unwrap();
            seen.undivided_time = Some(Nanos(seen.time.0 / undivided));
            table(&optimized, WIDE)
        };
        let text = of_second(3);
        let said = "0.54x as fast\nslower      conv2 forward takes 3.0 times as long divided within 1 B as undivided\n";
        assert!(text.contains(said), "{text}");
        assert!(!of_second(1).contains("slower"), "{}", of_second(1));
        // If the whole run is faster, a slower kernel does not matter.
        optimized.kernels[0].verification.as_mut().unwrap().undivided_time = Some(Nanos(90_000_000));
        optimized.kernels[1].verification.as_mut().unwrap().undivided_time = Some(Nanos(1_000_000));
        let text = table(&optimized, WIDE);
        assert!(text.contains("undivided 91.00 ms") && !text.contains("slower"), "{text}");
    }

    #[test]
    fn unmeasured_kernels_are_not_reported_as_over_the_limit() {
        let mut optimized = samples::verified();
        optimized.kernels[1].undivided = Err(NotUndivided::NotMeasured);
        let text = table(&optimized, WIDE);
        let said = "undivided   not measured at 256 samples: conv2 forward;\n            \
                    `tightfit profile NETWORK --batch 256` measures it\n";
        assert!(text.contains(said) && !text.contains("fit:") && !text.contains("fits now"), "{text}");
        optimized.kernels[0].undivided = Err(NotUndivided::OverLimit);
        let text = table(&optimized, WIDE);
        assert!(text.contains("does not fit: conv1 forward\n") && text.contains(said), "{text}");
    }

    #[test]
    fn a_proven_allotment_says_so() {
        let proven = Optimized { gap: 0.0, ..samples::verified() };
        assert!(table(&proven, WIDE).contains("proven"));
        assert!(!table(&samples::verified(), WIDE).contains("proven"));
        assert!(!table(&samples::alexnet(), WIDE).contains("gap "), "a limit per kernel is always met exactly");
    }

    #[test]
    fn nothing_at_all() {
        insta::assert_snapshot!(table(&samples::empty(), WIDE), @r#"
        alexnet, mini-batch 256, f32 nchw, NVIDIA H200 (cudnn 9.19.0)
        sizes fit, workspace limit 64 MiB per kernel

        layer  operation  configuration  time [µs]  workspace  gain
        ------------------------------------------------------------

        undivided   0.0 µs
        divided     0.0 µs (0 of 0 kernels divided)
        workspace   0 B in total
        profiling   0.0 µs, 0 measurements
        "#);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for kernels in [1, 160] {
            let text = table(&samples::network(kernels), WIDE);
            assert_eq!(text.lines().filter(|line| line.starts_with("inception_")).count(), kernels);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        }
    }
}
