//! `tightfit cache list|export|import|merge|clear`

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use tightfit_conv::{Configuration, Device};
use tightfit_profile::{Cache, Imported, Recording};
use tightfit_report::{Align, Grid, count};
use tightfit_units::{Nanos, output};

use super::print_grid;
use crate::failure::{Failure, print};
use crate::message;
use crate::options::{CacheAction, CacheOptions, Common, Format};
use crate::session::cache_path;

/// Where the program's own choice stays.
const OWN: &str = "own choice";

pub fn run(options: &CacheOptions, common: &Common) -> Result<(), Failure> {
    let path = cache_path(common)
        .ok_or_else(|| Failure::Usage("no cache is in use; name one with --cache FILE".to_owned()))?;
    match &options.action {
        CacheAction::List { layers, decisions } => {
            let cache = Cache::open_read_only(&path)?;
            say_left_out(&cache)?;
            match (layers, decisions) {
                (true, _) => list_layers(&cache, common),
                (_, true) => list_decisions(&cache, common),
                _ => list(&cache, common),
            }
        }
        CacheAction::Export { file } => {
            let recordings = recordings(&path)?;
            if recordings.is_empty() {
                return Err(Failure::Wrong(format!("{}: no measurements to export", path.display())));
            }
            Recording::write(file, &recordings)?;
            let wrote = format!("wrote {} to {}", count(recordings.len(), "device"), file.display());
            if output::is_standard_output(file) {
                message::say(wrote);
                return Ok(());
            }
            print(&format!("{wrote}\n"))
        }
        CacheAction::Import { files } => {
            take(&path, files, common, |file| Recording::read(file).map_err(Failure::from))
        }
        CacheAction::Merge { files } => take(&path, files, common, recordings),
        CacheAction::Clear { yes, device } => {
            let cache = Cache::open_existing(&path)?;
            if !yes && device.is_none() {
                confirm(&cache)?;
            }
            let gone = cache.clear(device.as_deref())?;
            print(&format!("deleted {}\n", count(gone, "measurement")))
        }
    }
}

/// Asks whether everything is to be deleted; nothing is asked of an empty cache.
///
/// # Errors
/// [`Failure::Usage`] where nobody can answer, and [`Failure::Stopped`] for any answer but yes.
fn confirm(cache: &Cache) -> Result<(), Failure> {
    let devices = cache.summary()?;
    let measurements: u64 = devices.iter().map(|line| line.measurements as u64).sum();
    if devices.is_empty() {
        return Ok(());
    }
    let all = format!(
        "all {} of {} in {}",
        count(measurements as usize, "measurement"),
        count(devices.len(), "device"),
        cache.path().display()
    );
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("this deletes {all}; add --yes, or name the device with --device TEXT")));
    }
    print(&format!("delete {all}? [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| Failure::Wrong(error.to_string()))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Stopped("nothing was deleted".to_owned())),
    }
}

/// The valid content of a cache.
fn recordings(path: &Path) -> Result<Vec<Recording>, Failure> {
    let cache = Cache::open_read_only(path)?;
    say_left_out(&cache)?;
    Ok(cache.recordings()?)
}

/// Warns if a cache has invalid rows, which are ignored.
fn say_left_out(cache: &Cache) -> Result<(), Failure> {
    let rows = cache.left_out()?;
    if rows > 0 {
        let path = cache.path().display();
        // A closed standard error is not a reason to fail.
        let _ = writeln!(
            std::io::stderr(),
            "warning: {path}: ignoring {rows} invalid rows; `tightfit cache clear` deletes them, and all others too"
        );
    }
    Ok(())
}

fn list(cache: &Cache, common: &Common) -> Result<(), Failure> {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("backend", left),
        ("device", left),
        ("library", left),
        ("threads", right),
        ("problems", right),
        ("measurements", right),
        ("decisions", right),
        ("unfinished", right),
    ]);
    for line in cache.summary()? {
        let device = line.device;
        let [threads, problems, measurements, decisions, unfinished] =
            [device.threads, line.problems, line.measurements, line.decisions, line.unfinished]
                .map(|count| count.to_string());
        grid.push([
            device.backend,
            device.name,
            device.library,
            threads,
            problems,
            measurements,
            decisions,
            unfinished,
        ]);
    }
    print_grid(&grid, common.format)
}

fn list_decisions(cache: &Cache, common: &Common) -> Result<(), Failure> {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("device", left),
        ("library", left),
        ("problem", left),
        ("question", left),
        ("configuration", left),
        ("time_us", right),
        ("framework_us", right),
        ("state", left),
    ]);
    for recording in cache.recordings()? {
        for (problem, question, decision) in recording.decisions() {
            let micros = |time: Option<Nanos>| time.map_or(String::new(), |time| format!("{:.1}", time.as_micros()));
            let ours = decision.configuration.as_ref();
            grid.push([
                recording.device.name.clone(),
                recording.device.library.clone(),
                problem.to_owned(),
                question.to_owned(),
                ours.map_or_else(|| OWN.to_owned(), ToString::to_string),
                micros(ours.map(Configuration::time)),
                micros(decision.framework_time),
                if decision.is_final { "finished" } else { "unfinished" }.to_owned(),
            ]);
        }
    }
    print_grid(&grid, common.format)
}

fn list_layers(cache: &Cache, common: &Common) -> Result<(), Failure> {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid =
        Grid::new([("network", left), ("batch", right), ("layer", left), ("mini_batch", right), ("problem", left)]);
    for network in cache.networks()? {
        let batch = network.owner.batch().map_or(String::new(), |batch| batch.to_string());
        for (layer, shape, mini_batch) in network.layers {
            grid.push([network.name.clone(), batch.clone(), layer, mini_batch.to_string(), shape]);
        }
    }
    print_grid(&grid, common.format)
}

/// Imports all files into a cache, after reading every one of them: if one cannot be read, nothing changes. Prints what came of each device.
fn take(
    cache: &Path,
    files: &[PathBuf],
    common: &Common,
    read: impl Fn(&Path) -> Result<Vec<Recording>, Failure>,
) -> Result<(), Failure> {
    let mut recordings = Vec::new();
    for file in files {
        recordings.extend(read(file)?);
    }
    let decisions: usize = recordings.iter().map(|recording| recording.decisions().count()).sum();
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("backend", left),
        ("device", left),
        ("library", left),
        ("measurements", right),
        ("new_decisions", right),
        ("replaced_decisions", right),
        ("kept_decisions", right),
        ("unfinished_decisions", right),
    ]);
    let cache = Cache::open(cache)?;
    let mut taken = 0;
    for recording in &recordings {
        let Imported { measurements, new, replaced, kept, unfinished } = cache.import(recording)?;
        taken += measurements;
        let [measurements, new, replaced, kept, unfinished] =
            [measurements, new, replaced, kept, unfinished].map(|count| count.to_string());
        let Device { backend, name, library, .. } = recording.device.clone();
        grid.push([backend, name, library, measurements, new, replaced, kept, unfinished]);
    }
    if common.format == Format::Table {
        let (taken, devices) = (count(taken, "measurement"), count(recordings.len(), "device"));
        let words = if decisions == 0 { String::new() } else { format!(" and {}", count(decisions, "decision")) };
        print(&format!("imported {taken}{words} from {devices}\n"))?;
        if decisions == 0 {
            return Ok(());
        }
    }
    print_grid(&grid, common.format)
}
