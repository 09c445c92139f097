//! `tightfit cache list|export|import|merge|clear`

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tightfit_core::profile::{Cache, Recording};
use tightfit_core::report::{Align, Grid};

use super::print_grid;
use crate::failure::{Failure, print};
use crate::options::{CacheAction, CacheOptions, Common};
use crate::session::cache_path;

pub fn run(options: &CacheOptions, common: &Common) -> Result<(), Failure> {
    let path = cache_path(common)
        .ok_or_else(|| Failure::Usage("there is no cache to look after; name one with --cache FILE".to_owned()))?;
    match &options.action {
        CacheAction::List { layers: false } => list(&Cache::open_read_only(&path)?, common),
        CacheAction::List { layers: true } => list_layers(&Cache::open_read_only(&path)?, common),
        CacheAction::Export { file } => {
            let recordings = Cache::open_read_only(&path)?.recordings()?;
            if recordings.is_empty() {
                return Err(Failure::Wrong(format!("{}: has no measurements to export", path.display())));
            }
            Recording::write(file, &recordings)?;
            print(&format!("wrote {} devices to {}\n", recordings.len(), file.display()))
        }
        CacheAction::Import { files } => {
            forget_surveys(&path)?;
            take(&Cache::open(&path)?, files, Recording::read)
        }
        CacheAction::Merge { files } => {
            forget_surveys(&path)?;
            take(&Cache::open(&path)?, files, |file| Cache::open_read_only(file)?.recordings())
        }
        CacheAction::Clear { device } => {
            forget_surveys(&path)?;
            let gone = Cache::open(&path)?.clear(device.as_deref())?;
            print(&format!("forgot {gone} measurements\n"))
        }
    }
}

/// Forgets which convolutions of programs under `run` were measured to the end: of other measurements that does not hold. They
/// are looked through once more, and what the cache has is not measured again.
fn forget_surveys(cache: &Path) -> Result<(), Failure> {
    let path = cache.with_extension("surveyed");
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::Wrong(format!("{}: cannot be removed: {error}", path.display())))
        }
        _ => Ok(()),
    }
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
        Grid::new([("network", left), ("batch", right), ("layer", left), ("mini-batch", right), ("problem", left)]);
    for network in cache.networks()? {
        let batch = match network.batch {
            Cache::PROGRAM => String::new(),
            batch => batch.to_string(),
        };
        for (layer, shape, mini_batch) in network.layers {
            grid.push([network.name.clone(), batch.clone(), layer, mini_batch.to_string(), shape]);
        }
    }
    print_grid(&grid, common.format)
}

/// Takes in every file, after all of them were read: one that cannot be read changes nothing.
fn take(
    cache: &Cache,
    files: &[PathBuf],
    read: impl Fn(&Path) -> Result<Vec<Recording>, tightfit_core::Error>,
) -> Result<(), Failure> {
    let mut recordings = Vec::new();
    for file in files {
        recordings.extend(read(file)?);
    }
    let mut taken = 0;
    for recording in &recordings {
        taken += cache.import(recording)?;
    }
    print(&format!("took in {taken} measurements of {} devices\n", recordings.len()))
}
