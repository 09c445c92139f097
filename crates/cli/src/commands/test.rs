//! `tightfit test NETWORK`

use tightfit_report::{Align, Grid};
use tightfit_train::{Prediction, Score};
use tightfit_units::Bytes;

use super::dataset::Labeled;
use super::forward::{self, Done, Job, Report};
use super::networked::{Ends, ends};
use super::print_grid;
use crate::failure::{Failure, print};
use crate::model;
use crate::options::{Common, Format, TestOptions};

/// Maximum rows of the table; if there are more mini-batches, each row covers several.
const ROWS: usize = 10;

/// Runs trained weights over labeled data, where accuracy and loss mean something.
pub fn run(options: &TestOptions, common: &Common) -> Result<(), Failure> {
    let forward = &options.forward;
    let opened = model::open(&forward.model.network)?;
    let usage = |what: String| Err(Failure::Usage(what));
    if forward.load.is_none() && (opened.model.is_none() || forward.model.random_weights) {
        return usage("there are no trained weights to test; name them with --load FILE".to_owned());
    }
    if options.data == "synthetic" {
        return usage(
            "synthetic data has random labels, so there is nothing to test against; name a data set with --data"
                .to_owned(),
        );
    }
    if !ends(&opened.network)?.has_loss {
        return usage(format!("{} has no loss layer, so its outputs cannot be scored", opened.network.name()));
    }
    forward::run(
        "test",
        forward,
        common,
        &opened,
        |&Ends { sample, classes, .. }| {
            let (test, pixels) = (forward.test_data.as_deref(), &forward.model.pixels);
            Labeled { name: &options.data, test, pixels, sample, classes, seed: common.seed }.open()
        },
        |_| Scores,
    )
}

/// The score of each mini-batch.
struct Scores;

impl Report for Scores {
    fn take(&mut self, _: &Job<'_>, _: usize, _: &Prediction<'_>) {}

    fn print(&self, job: &Job<'_>, peak: Bytes) -> Result<(), Failure> {
        match job.common.format {
            Format::Table => {
                let rows = rows(job.done(), job.done().len().div_ceil(ROWS).max(1)).table(super::terminal());
                print(&format!("{}\n{rows}\n{}", job.head(peak), job.tail()))
            }
            Format::Csv => print_grid(&values(job.done()), Format::Csv),
            Format::Json => print(&format!("{:#}\n", job.json(peak))),
        }
    }
}

/// One row per mini-batch for programs.
fn values(done: &[Done]) -> Grid {
    let columns = ["mini_batch", "samples", "batch_time_us", "correct"];
    let mut grid = Grid::new(columns.map(|column| (column, Align::Right)));
    for (number, Done { score, time }) in (1..).zip(done) {
        let cells = [number.to_string(), score.samples.to_string(), time.as_micros().to_string()];
        grid.push(cells.into_iter().chain([score.correct.to_string()]));
    }
    grid
}

/// One row per `every` mini-batches for people, with their mean time.
fn rows(done: &[Done], every: usize) -> Grid {
    let columns = ["mini-batches", "samples", "time [µs]", "correct [%]"];
    let mut grid = Grid::new(columns.map(|column| (column, Align::Right)));
    let mut samples = 0;
    for (part, batches) in done.chunks(every).enumerate() {
        let score = Score::of(&batches.iter().map(|batch| batch.score).collect::<Vec<_>>());
        let time: f64 = batches.iter().map(|batch| batch.time.as_micros()).sum();
        samples += score.samples;
        grid.push([
            (part * every + batches.len()).to_string(),
            samples.to_string(),
            format!("{:.0}", time / batches.len() as f64),
            format!("{:.1}", 100.0 * score.accuracy()),
        ]);
    }
    grid
}
