//! `tightfit profile NETWORK`

use std::time::Instant;

use serde_json::json;
use tightfit_core::Nanos;
use tightfit_core::profile::Spent;
use tightfit_core::report::{Align, Grid};

use super::print_grid;
use crate::failure::{Failure, print};
use crate::options::{Common, Format, ProfileOptions};
use crate::session::{Session, tell_of};
use crate::solve::Selected;

pub fn run(options: &ProfileOptions, common: &Common) -> Result<(), Failure> {
    let selected = Selected::new(&options.selection, common)?;
    let mut session = Session::open(common)?;
    let started = Instant::now();
    let found = selected.survey(&mut session, common, options.policy, options.workspace.clone(), None)?;
    let wall = Nanos::from(started.elapsed());
    tell_of(&found.spent, common);
    let Spent { time, kernel_time, measured, cached, skipped, cache_failure } = &found.spent;
    let cache = session.cache.as_ref().map(|cache| cache.path().display().to_string());
    let (kernels, distinct) = (selected.kernels.len(), found.candidates.len());
    if common.format == Format::Json {
        let reason = |s: &tightfit_core::profile::Skipped| json!({"problem": s.problem.to_string(), "algorithm": s.algorithm.name(), "reason": s.reason});
        let object = json!({
            "network": selected.network,
            "batch": selected.batch,
            "device": session.device(),
            "types": common.types,
            "layout": common.layout,
            "policy": options.policy.name(),
            "workspace_limit_bytes": options.workspace,
            "kernels": kernels,
            "distinct_kernels": distinct,
            "measured": measured,
            "cached": cached,
            "skipped": skipped.iter().map(reason).collect::<Vec<_>>(),
            "kernel_time_us": kernel_time.as_micros(),
            "time_us": time.as_micros(),
            "wall_time_us": wall.as_micros(),
            "cache": cache,
        });
        print(&format!("{object:#}\n"))?;
    } else {
        let mut grid = Grid::new([("figure", Align::Left), ("value", Align::Left)]);
        for (name, value) in [
            ("device", session.device().to_string()),
            ("policy", options.policy.to_string()),
            ("kernels", format!("{kernels} ({distinct} distinct)")),
            ("measurements", format!("{measured} new, {cached} cached, {} skipped", skipped.len())),
            ("one call of each", kernel_time.to_string()),
            ("measuring", time.to_string()),
            ("in all", wall.to_string()),
            ("kept in", cache.unwrap_or("nowhere".to_owned())),
        ] {
            grid.push([name.to_owned(), value]);
        }
        print_grid(&grid, common.format)?;
    }
    match cache_failure {
        Some(failure) => Err(Failure::Wrong(format!("could not save all measurements: {failure}"))),
        None => Ok(()),
    }
}
