//! `tightfit doctor`

use tightfit_core::Backend;
use tightfit_core::profile::Cache;
use tightfit_core::report::{Align, Grid};
use tightfit_cpu::CpuBackend;
use tightfit_cuda::doctor::State;

use super::print_grid;
use crate::failure::Failure;
use crate::options::{Common, DoctorOptions};
use crate::session::{cache_path, cuda_options, device_numbers};

pub fn run(options: &DoctorOptions, common: &Common) -> Result<(), Failure> {
    if options.preload {
        return super::doctor_preload::run(options.python.as_deref(), common);
    }
    let mut grid = Grid::new([
        ("what", Align::Left),
        ("state", Align::Left),
        ("where and which version", Align::Left),
        ("what to do", Align::Left),
    ]);
    let cpu = CpuBackend::new(common.threads);
    grid.push(["cpu backend", "ok", &cpu.device().to_string(), ""]);
    let device = device_numbers(common)?[0];
    for finding in tightfit_cuda::doctor::doctor(&cuda_options(common, device)) {
        let (state, detail, advice) = match &finding.state {
            State::Found { detail, path: Some(path) } => ("ok", format!("{detail}, {}", path.display()), ""),
            State::Found { detail, path: None } => ("ok", detail.clone(), ""),
            State::Missing { error, advice } => ("missing", error.to_string(), *advice),
            State::NotReached => ("not tried", String::new(), "mend what is missing above first"),
        };
        grid.push([finding.what, state, &detail, advice]);
    }
    let (state, place, advice) = match cache_path(common) {
        None => ("off", "none".to_owned(), "name a file with --cache to keep measurements".to_owned()),
        Some(path) if !path.exists() => {
            ("empty", path.display().to_string(), "it is made by the first measurement".to_owned())
        }
        Some(path) => match Cache::open_read_only(&path).and_then(|cache| cache.summary()) {
            Ok(devices) => {
                let measurements: usize = devices.iter().map(|device| device.measurements).sum();
                ("ok", path.display().to_string(), format!("{measurements} measurements of {} devices", devices.len()))
            }
            Err(error) => ("unusable", path.display().to_string(), error.to_string()),
        },
    };
    grid.push(["cache", state, &place, &advice]);
    print_grid(&grid, common.format)
}
