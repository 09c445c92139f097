//! `tightfit profile NETWORK`

use std::time::Instant;

use tightfit_core::Nanos;
use tightfit_core::report::{Align, Grid};

use super::print_grid;
use crate::failure::Failure;
use crate::options::{Common, ProfileOptions};
use crate::session::{Session, tell_of};
use crate::solve::Selected;

pub fn run(options: &ProfileOptions, common: &Common) -> Result<(), Failure> {
    let mut session = Session::open(common)?;
    let selected = Selected::new(&options.selection, common)?;
    let started = Instant::now();
    let found = selected.survey(&mut session, options.sizes.policy, options.workspace.clone(), None)?;
    tell_of(&found.spent, common);
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([("figure", left), ("value", right)]);
    let kept = session.cache.as_ref().map_or("nowhere".to_owned(), |cache| cache.path().display().to_string());
    for (name, value) in [
        ("device", session.device().to_string()),
        ("policy", options.sizes.policy.to_string()),
        ("kernels", selected.kernels.len().to_string()),
        ("distinct kernels", found.candidates.len().to_string()),
        ("measured", found.spent.measured.to_string()),
        ("found in the cache", found.spent.cached.to_string()),
        ("left out", found.spent.skipped.len().to_string()),
        ("time of one call of each", found.spent.kernel_time.to_string()),
        ("time of measuring", found.spent.time.to_string()),
        ("wall-clock time", Nanos::from(started.elapsed()).to_string()),
        ("kept in", kept),
    ] {
        grid.push([name.to_owned(), value]);
    }
    print_grid(&grid, common.format)?;
    match found.spent.cache_failure {
        Some(failure) => Err(Failure::Wrong(format!("the measurements could not all be kept: {failure}"))),
        None => Ok(()),
    }
}
