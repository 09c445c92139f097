//! `tightfit cache list|export|import|merge|clear`

use std::io::Write;
use std::path::{Path, PathBuf};

use tightfit_core::output;
use tightfit_core::profile::{Cache, Recording};
use tightfit_core::report::{Align, Grid, count};

use super::print_grid;
use crate::failure::{Failure, print};
use crate::message;
use crate::options::{CacheAction, CacheOptions, Common};
use crate::session::cache_path;

pub fn run(options: &CacheOptions, common: &Common) -> Result<(), Failure> {
    let path = cache_path(common)
        .ok_or_else(|| Failure::Usage("no cache is in use; name one with --cache FILE".to_owned()))?;
    match &options.action {
        CacheAction::List { layers } => {
            let cache = Cache::open_read_only(&path)?;
            say_left_out(&cache)?;
            if *layers { list_layers(&cache, common) } else { list(&cache, common) }
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
            take(&Cache::open(&path)?, files, |file| Recording::read(file).map_err(Failure::from))
        }
        CacheAction::Merge { files } => take(&Cache::open(&path)?, files, recordings),
        CacheAction::Clear { device } => {
            let gone = Cache::open(&path)?.clear(device.as_deref())?;
            print(&format!("deleted {}\n", count(gone, "measurement")))
        }
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
    ]);
    for line in cache.summary()? {
        let device = line.device;
        let [threads, problems, measurements] =
            [device.threads, line.problems, line.measurements].map(|count| count.to_string());
        grid.push([device.backend, device.name, device.library, threads, problems, measurements]);
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

/// Imports all files, after reading every one of them: if one cannot be read, nothing changes.
fn take(
    cache: &Cache,
    files: &[PathBuf],
    read: impl Fn(&Path) -> Result<Vec<Recording>, Failure>,
) -> Result<(), Failure> {
    let mut recordings = Vec::new();
    for file in files {
        recordings.extend(read(file)?);
    }
    let decisions: usize = recordings.iter().map(|recording| recording.decisions().count()).sum();
    let mut taken = 0;
    for recording in &recordings {
        taken += cache.import(recording)?;
    }
    let (taken, devices) = (count(taken, "measurement"), count(recordings.len(), "device"));
    let decisions = if decisions == 0 { String::new() } else { format!(" and {}", count(decisions, "decision")) };
    print(&format!("imported {taken}{decisions} from {devices}\n"))
}
