//! `tightfit compare -- COMMAND ..`: the same program plain and under tightfit, one after the other.
//!
//! Our Python module in the program (`tightfit/_compare.py`) notes the time of each step, each loss on which `backward` is called, and the peak of
//! PyTorch's allocator; after enough steps it writes them and ends the program. If losses differ, plain runs a second time, because a program without
//! a seed does not repeat its losses either.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;
use tightfit_report::{Align, Grid};
use tightfit_units::Bytes;

use super::run::{not_started, prepared};
use super::run_budget::search_path;
use crate::failure::{Failure, print};
use crate::message;
use crate::options::{Common, CompareOptions, Format, started};
use crate::progress::Bar;

/// Two medians that differ by no more than this are the same.
const SAME: f64 = 0.02;
/// The fewest steps whose spread is meaningful.
const FEWEST: usize = 5;
/// The variables for our module: its output file, and the number of steps after which it ends the program.
const FILE: &str = "TIGHTFIT_COMPARE";
const STEPS: &str = "TIGHTFIT_COMPARE_STEPS";
/// The beginning of our lines in a program's output, and the exit code of a program whose budget cannot be met.
const OURS: &str = "tightfit: ";
const REFUSED: i32 = 3;

/// The measurements of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Ran {
    /// Of each step after the first ones, in ms.
    steps_ms: Vec<f64>,
    /// The peak of PyTorch's allocator over these steps; `None` on a CPU.
    peak_bytes: Option<u64>,
    /// Each loss from the first step on, to the bit; and as a number.
    bits: Vec<String>,
    losses: Vec<Option<f64>>,
    device: String,
}

pub fn run(options: &CompareOptions, common: &Common) -> Result<(), Failure> {
    let path = search_path(&started(&options.run.command)?)?;
    let plain = plain(options, &path, common, "plain")?;
    let ours = tightfit(options, &path, common)?;
    let mut losses = Losses::of(&plain, &ours);
    if matches!(losses, Losses::Differ { .. }) {
        message::say(format_args!(
            "tightfit: losses differ; running plain once more, to see whether it repeats itself"
        ));
        if let Losses::Differ { .. } = Losses::of(&plain, &self::plain(options, &path, common, "plain again")?) {
            losses = Losses::Unknown;
        }
    }
    let verdict = Verdict::of(&plain.steps_ms, &ours.steps_ms);
    match common.format {
        Format::Json => print(&format!("{:#}\n", to_json(&plain, &ours, verdict, &losses))),
        Format::Table | Format::Csv => super::print_grid(&grid(&plain, &ours, verdict, &losses), common.format),
    }
}

/// Runs the command as it is.
fn plain(options: &CompareOptions, path: &OsString, common: &Common, what: &str) -> Result<Ran, Failure> {
    let [program, arguments @ ..] = &started(&options.run.command)?[..] else {
        return Err(Failure::Usage("no command to compare".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("TIGHTFIT_BUDGET");
    noted(command, path, options, common, what)
}

/// Runs it as `tightfit run` does.
fn tightfit(options: &CompareOptions, path: &OsString, common: &Common) -> Result<Ran, Failure> {
    let (command, budgeted) = prepared(&options.run, common)?;
    let ran = noted(command, path, options, common, "tightfit");
    if let Some(budgeted) = budgeted {
        budgeted.forget();
    }
    ran
}

/// Runs a command, and reads the notes of our module. With `-v`, the program's output is shown; otherwise, its last lines if it fails.
fn noted(
    mut command: Command,
    path: &OsString,
    options: &CompareOptions,
    common: &Common,
    what: &str,
) -> Result<Ran, Failure> {
    let file =
        std::env::temp_dir().join(format!("tightfit-compare-{}-{}.json", std::process::id(), what.replace(' ', "-")));
    let has_ours = command.get_envs().any(|(name, _)| name == "PYTHONPATH");
    if !has_ours {
        command.env("PYTHONPATH", path);
    }
    command.env(FILE, &file).stdin(Stdio::null());
    if let Some(steps) = options.steps {
        command.env(STEPS, steps.to_string());
    }
    let bar = Bar::new(format!("running {what}"), None);
    let failed = if common.verbose > 0 {
        let status = command.status().map_err(|error| not_started(&command, &error))?;
        (!status.success()).then(|| (status, String::new()))
    } else {
        let output = command.output().map_err(|error| not_started(&command, &error))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let (mut ours, theirs): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.starts_with(OURS));
        let refused = (output.status.code() == Some(REFUSED)).then(|| ours.pop()).flatten();
        if !options.run.quiet {
            ours.iter().for_each(message::say);
        }
        if let Some(why) = refused {
            return Err(Failure::TooLarge(why.trim_start_matches(OURS).to_owned()));
        }
        (!output.status.success()).then(|| (output.status, theirs.join("\n")))
    };
    drop(bar);
    let read = read(&file);
    // A file left behind in the folder for temporary ones does no harm.
    let _ = std::fs::remove_file(&file);
    match (failed, read) {
        (Some((status, said)), _) => {
            let last: Vec<&str> = said.lines().rev().take(20).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            Err(Failure::Wrong(
                format!("{what}: the program ended with {status}\n{}", last.join("\n")).trim_end().to_owned(),
            ))
        }
        (None, Some(ran)) if ran.steps_ms.len() >= FEWEST => Ok(ran),
        (None, ran) => Err(Failure::Wrong(format!(
            "{what}: the program ended after {} steps that could be measured; at least {FEWEST} are needed after the first 8. A step is \
             a call of an optimizer's `step`, in a process that is started with the Python of the command",
            ran.map_or(0, |ran| ran.steps_ms.len())
        ))),
    }
}

fn read(file: &PathBuf) -> Option<Ran> {
    serde_json::from_slice(&std::fs::read(Path::new(file)).ok()?).ok()
}

/// Whether one is faster, given the spread of both.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    word: &'static str,
    /// The step's time under tightfit divided by plain's, and the bounds of this ratio.
    ratio: f64,
    least: f64,
    most: f64,
}

impl Verdict {
    fn of(plain: &[f64], ours: &[f64]) -> Verdict {
        let (one, other) = (Median::of(plain), Median::of(ours));
        let (ratio, least, most) = (other.value / one.value, other.least / one.most, other.most / one.least);
        let word = if least >= 1.0 - SAME && most <= 1.0 + SAME {
            "SAME"
        } else if most < 1.0 {
            "FASTER"
        } else if least > 1.0 {
            "SLOWER"
        } else {
            "AMBIGUOUS"
        };
        Verdict { word, ratio, least, most }
    }
}

/// A median and its 95% confidence interval, from the order of the values alone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Median {
    value: f64,
    least: f64,
    most: f64,
}

impl Median {
    fn of(values: &[f64]) -> Median {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        // The rank of the bound, by the binomial distribution's normal form.
        let low = (n as f64 / 2.0 - 0.98 * (n as f64).sqrt()).floor().max(0.0) as usize;
        let value = f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]);
        Median { value, least: sorted[low], most: sorted[n - 1 - low] }
    }
}

/// How the losses of two runs compare.
#[derive(Clone, Debug, PartialEq)]
enum Losses {
    /// This number of losses, all equal to the bit.
    Equal(usize),
    /// The losses differ, beginning with this one (counted from 1), by at most this share of their value.
    Differ { from: usize, by: f64, of: usize },
    /// Plain does not repeat itself.
    Unknown,
    /// No loss was seen.
    None,
}

impl Losses {
    fn of(one: &Ran, other: &Ran) -> Losses {
        let count = one.bits.len().min(other.bits.len());
        if count == 0 {
            return Losses::None;
        }
        let Some(first) = (0..count).find(|&at| one.bits[at] != other.bits[at]) else { return Losses::Equal(count) };
        let part = |at: usize| match (one.losses[at], other.losses[at]) {
            (Some(a), Some(b)) => (a - b).abs() / a.abs().max(f64::MIN_POSITIVE),
            (None, None) => 0.0,
            _ => f64::INFINITY,
        };
        Losses::Differ { from: first + 1, by: (first..count).map(part).fold(0.0, f64::max), of: count }
    }

    fn text(&self) -> String {
        match self {
            Losses::Equal(count) => format!("{count} losses are equal to the bit"),
            Losses::Differ { from, by, of } => {
                format!("from loss {from} of {of} on, losses differ by at most {by:.1e} of their value")
            }
            Losses::Unknown => {
                "unknown: plain does not repeat itself from run to run (no seed, or operations that are not deterministic)"
                    .to_owned()
            }
            Losses::None => "no loss was seen".to_owned(),
        }
    }
}

fn grid(plain: &Ran, ours: &Ran, verdict: Verdict, losses: &Losses) -> Grid {
    let columns = [("", Align::Left), ("plain", Align::Right), ("tightfit", Align::Right), ("", Align::Left)];
    let mut grid = Grid::new(columns);
    let ms = |ran: &Ran| format!("{:.2} ms", Median::of(&ran.steps_ms).value);
    let Verdict { word, ratio, least, most } = verdict;
    grid.push(["step".to_owned(), ms(plain), ms(ours), format!("{word}: {ratio:.3}x ({least:.3} to {most:.3})")]);
    let peak = |ran: &Ran| ran.peak_bytes.map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).to_string());
    let share = match (plain.peak_bytes, ours.peak_bytes) {
        (Some(one), Some(other)) => format!("{:.0}%", 100.0 * other as f64 / one.max(1) as f64),
        _ => "not counted on a CPU".to_owned(),
    };
    grid.push(["peak".to_owned(), peak(plain), peak(ours), share]);
    let count = |ran: &Ran| ran.steps_ms.len().to_string();
    grid.push(["steps".to_owned(), count(plain), count(ours), format!("after the first 8, on {}", ours.device)]);
    grid.push(["losses".to_owned(), plain.bits.len().to_string(), ours.bits.len().to_string(), losses.text()]);
    grid
}

fn to_json(plain: &Ran, ours: &Ran, verdict: Verdict, losses: &Losses) -> serde_json::Value {
    let of = |ran: &Ran| {
        let Median { value, least, most } = Median::of(&ran.steps_ms);
        json!({"step_ms": value, "step_ms_least": least, "step_ms_most": most, "steps": ran.steps_ms.len(),
               "peak_bytes": ran.peak_bytes, "losses": ran.losses})
    };
    let equal = match losses {
        Losses::Equal(_) => json!(true),
        Losses::Differ { .. } => json!(false),
        Losses::Unknown | Losses::None => json!(null),
    };
    json!({
        "device": ours.device, "verdict": verdict.word, "ratio": verdict.ratio, "ratio_least": verdict.least,
        "ratio_most": verdict.most, "losses_equal": equal, "losses": losses.text(), "plain": of(plain), "tightfit": of(ours),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(losses: &[f64]) -> Ran {
        let bits = losses.iter().map(|loss| format!("{:x}", loss.to_bits())).collect();
        let losses = losses.iter().map(|loss| loss.is_finite().then_some(*loss)).collect();
        Ran { bits, losses, steps_ms: vec![1.0; 5], ..Ran::default() }
    }

    #[test]
    fn the_verdict_is_by_the_spread_of_both() {
        let around = |middle: f64, spread: f64| {
            (0..40).map(|at| middle + spread * (at as f64 / 39.0 - 0.5)).collect::<Vec<f64>>()
        };
        for (plain, ours, word) in [
            (around(100.0, 2.0), around(100.5, 2.0), "SAME"),
            (around(100.0, 2.0), around(80.0, 2.0), "FASTER"),
            (around(100.0, 2.0), around(110.0, 2.0), "SLOWER"),
            (around(100.0, 40.0), around(104.0, 40.0), "AMBIGUOUS"),
        ] {
            assert_eq!(Verdict::of(&plain, &ours).word, word);
        }
        assert_eq!(Median::of(&[3.0, 1.0, 2.0, 5.0, 4.0]), Median { value: 3.0, least: 1.0, most: 5.0 });
    }

    #[test]
    fn every_key_is_documented() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/output.md")).unwrap();
        let section = page.split("\n## ").find(|section| section.starts_with("`compare`")).unwrap();
        let one = ran(&[1.0]);
        let json = to_json(&one, &one, Verdict::of(&one.steps_ms, &one.steps_ms), &Losses::of(&one, &one));
        let all = json.as_object().unwrap().keys().chain(json["plain"].as_object().unwrap().keys());
        all.for_each(|key| assert!(section.contains(&format!("`{key}`")), "{key}"));
        assert_eq!(
            json["plain"].as_object().unwrap().keys().count(),
            json["tightfit"].as_object().unwrap().keys().count()
        );
    }

    #[test]
    fn losses_are_compared_as_far_as_both_went() {
        let plain = ran(&[2.0, 1.0, f64::NAN]);
        assert_eq!(Losses::of(&plain, &ran(&[2.0, 1.0])), Losses::Equal(2));
        assert_eq!(Losses::of(&plain, &plain), Losses::Equal(3));
        assert_eq!(Losses::of(&plain, &ran(&[])), Losses::None);
        assert_eq!(Losses::of(&plain, &ran(&[2.0, 1.5, f64::NAN])), Losses::Differ { from: 2, by: 0.5, of: 3 });
        assert_eq!(Losses::of(&plain, &ran(&[2.0, 1.0, 0.0])), Losses::Differ { from: 3, by: f64::INFINITY, of: 3 });
    }
}
