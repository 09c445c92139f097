//! `tightfit split`

use std::sync::atomic::AtomicBool;

use tightfit_profile::Model;
use tightfit_profile::mixed::{MixedSplit, StepOptions, split_network};
use tightfit_report::{Align, Grid, lines};
use tightfit_units::{Bytes, Nanos};

use super::print_grid;
use crate::failure::{Failure, print};
use crate::model;
use crate::options::{Common, Format, SplitOptions};
use crate::session::recordings;

pub fn run(options: &SplitOptions, common: &Common) -> Result<(), Failure> {
    if common.devices.is_empty() {
        return Err(Failure::Usage("a split needs devices; name them with --devices, as in K80,K80,K20Xm".to_owned()));
    }
    let recordings = recordings(common)?;
    let model = match model::open(&options.network) {
        Ok(opened) => Model::Network(opened.network),
        Err(_) => Model::find(&options.network, &recordings)?,
    };
    let steps = StepOptions {
        types: common.types,
        layout: common.layout.unwrap_or_default(),
        sizes: options.sizes.get()?,
        workspace: options.workspace,
        rest: Nanos::from_micros(options.rest),
        multiple_of: options.multiple_of,
        memory: Bytes::UNLIMITED,
    };
    let memory = match options.memory[..] {
        [one] => vec![one; common.devices.len()],
        _ => options.memory.clone(),
    };
    // Ctrl-C ends the program: there is nothing to save here.
    let stop = AtomicBool::new(false);
    let found = split_network(&recordings, &common.devices, &model, options.batch, &steps, &memory, &stop)?;
    match common.format {
        Format::Json => print(&found.json()),
        Format::Csv => print_grid(&grid(&found), common.format),
        Format::Table => print(&format!("{}\n{}", heading(&found), grid(&found).table(super::terminal()))),
    }
}

fn heading(found: &MixedSplit) -> String {
    let beside = |time: Option<Nanos>, speedup: Option<f64>, what: &str| match (time, speedup) {
        (Some(time), Some(speedup)) => Some(format!("{speedup:.2}x over {what} ({time})")),
        _ => None,
    };
    let parts = [
        Some(found.network.clone()),
        Some(format!("mini-batch {}: {} per step", found.batch, found.time)),
        beside(found.even_time, found.speedup_over_even, "the even split"),
        beside(found.alone_time, found.speedup_over_alone, "the fastest device alone"),
    ];
    lines(parts.into_iter().flatten())
}

fn grid(found: &MixedSplit) -> Grid {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("name", left),
        ("device", left),
        ("steps", left),
        ("batch", right),
        ("time_us", right),
        ("even_batch", right),
        ("even_time_us", right),
        ("alone_time_us", right),
    ]);
    let micros = |time: Option<Nanos>| time.map(|time| format!("{:.1}", time.as_micros())).unwrap_or_default();
    for share in &found.devices {
        grid.push([
            share.name.clone(),
            share.device.clone(),
            if share.measured { "measured" } else { "added up" }.to_owned(),
            share.batch.to_string(),
            micros(Some(share.time)),
            share.even_batch.to_string(),
            micros(share.even_time),
            micros(share.alone_time),
        ]);
    }
    grid
}
