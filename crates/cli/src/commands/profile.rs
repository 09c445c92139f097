//! `tightfit profile NETWORK`

use std::time::Instant;

use serde_json::json;
use tightfit_profile::Spent;
use tightfit_profile::survey::Scope;
use tightfit_report::{Align, Grid};
use tightfit_units::Nanos;

use super::print_grid;
use crate::failure::{Failure, print};
use crate::options::{Common, Format, ProfileOptions};
use crate::session::Session;
use crate::solve::{profile, selection};

pub fn run(options: &ProfileOptions, common: &Common) -> Result<(), Failure> {
    let selection = selection(&options.selection, common)?;
    let kernels = selection.kernels()?.len();
    let sizes = options.sizes.get()?;
    let mut session = Session::open(common)?;
    let scope = Scope {
        divide: options.divide.get(),
        deterministic: common.deterministic,
        exact_class: common.exact_class,
        ..Scope::new(sizes, options.workspace.clone())
    };
    let started = Instant::now();
    let found = profile(&selection, &scope, &mut session, common)?;
    let wall = Nanos::from(started.elapsed());
    let Spent { time, kernel_time, measured, cached, skipped, cache_failure, shares } = &found.spent;
    let cache = session.cache.as_ref().map(|cache| cache.path().display().to_string());
    let distinct = found.candidates.len();
    if common.format == Format::Json {
        let reason = |s: &tightfit_profile::Skipped| json!({"problem": s.problem.to_string(), "algorithm": s.algorithm.name(), "reason": s.reason});
        let object = json!({
            "network": selection.model.name(),
            "batch": selection.batch,
            "device": session.device(),
            "types": common.types,
            "layout": common.layout.unwrap_or_default(),
            "policy": sizes.name(),
            "divide": options.divide.get().name(),
            "workspace_limit_bytes": options.workspace,
            "kernels": kernels,
            "distinct_kernels": distinct,
            "measured": measured,
            "cached": cached,
            "skipped": skipped.iter().map(reason).collect::<Vec<_>>(),
            "kernel_time_us": kernel_time.as_micros(),
            "time_us": time.as_micros(),
            "wall_time_us": wall.as_micros(),
            "devices": shares.iter().map(|share| json!({"measured": share.measured, "time_us": share.time.as_micros()})).collect::<Vec<_>>(),
            "cache": cache,
        });
        print(&format!("{object:#}\n"))?;
    } else {
        let mut grid = Grid::new([("figure", Align::Left), ("value", Align::Left)]);
        for (name, value) in [
            ("device", session.device().to_string()),
            ("sizes", sizes.to_string()),
            ("kernels", format!("{kernels} ({distinct} distinct)")),
            ("measurements", format!("{measured} new, {cached} cached, {} skipped", skipped.len())),
            ("one call of each", kernel_time.to_string()),
            ("measuring", time.to_string()),
            ("in all", wall.to_string()),
            ("kept in", cache.unwrap_or("nowhere".to_owned())),
        ] {
            grid.push([name.to_owned(), value]);
        }
        if let [_, _, ..] = shares[..] {
            let each: Vec<String> =
                shares.iter().map(|share| format!("{} in {}", share.measured, share.time)).collect();
            grid.push(["by device".to_owned(), each.join(", ")]);
        }
        print_grid(&grid, common.format)?;
    }
    match cache_failure {
        Some(failure) => Err(Failure::Wrong(format!("could not save all measurements: {failure}"))),
        None => Ok(()),
    }
}
