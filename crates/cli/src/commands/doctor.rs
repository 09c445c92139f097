//! `tightfit doctor`

use tightfit_conv::Backend;
use tightfit_cpu::CpuBackend;
use tightfit_cuda::doctor::State;
use tightfit_profile::Cache;
use tightfit_report::count;

use super::findings::{Finding, Findings, preload_library};
use crate::failure::Failure;
use crate::options::{Common, DoctorOptions};
use crate::preload::Form;
use crate::session::{cache_path, cuda_options, device_numbers};

pub fn run(options: &DoctorOptions, common: &Common) -> Result<(), Failure> {
    if options.preload {
        return super::doctor_preload::run(options.python.as_deref(), common);
    }
    let mut findings = Vec::new();
    let cpu = CpuBackend::new(common.threads);
    findings.push(Finding { what: "cpu backend", state: "ok", detail: cpu.device().to_string(), ..Finding::default() });
    let device = device_numbers(common)?[0];
    for tightfit_cuda::doctor::Finding { what, state } in tightfit_cuda::doctor::doctor(&cuda_options(common, device)) {
        let none = Finding { what, ..Finding::default() };
        findings.push(match state {
            State::Found { detail, path } => {
                Finding { state: "ok", detail, path: path.map(|path| path.display().to_string()), ..none }
            }
            State::Missing { error, advice } => {
                Finding { state: "missing", detail: error.to_string(), advice: advice.to_owned(), ..none }
            }
            State::NotReached => {
                Finding { state: "not tried", advice: "fix the items marked missing first".to_owned(), ..none }
            }
        });
    }
    findings.push(preload_library("preload library", Form::Named));
    findings.push(cache(common));
    Findings(findings).print(common.format)
}

fn cache(common: &Common) -> Finding {
    let none = Finding { what: "cache", ..Finding::default() };
    let Some(path) = cache_path(common) else {
        let advice = "set --cache FILE to save measurements".to_owned();
        return Finding { state: "off", detail: "none".to_owned(), advice, ..none };
    };
    let none = Finding { path: Some(path.display().to_string()), ..none };
    if !path.exists() {
        return Finding { state: "empty", advice: "created by the first measurement".to_owned(), ..none };
    }
    match Cache::open_read_only(&path).and_then(|cache| cache.summary()) {
        Ok(devices) => {
            let measurements = devices.iter().map(|device| device.measurements).sum();
            let measured = devices.iter().filter(|device| device.measurements > 0).count();
            let (measurements, devices) = (count(measurements, "measurement"), count(measured, "device"));
            Finding { state: "ok", detail: format!("{measurements} from {devices}"), ..none }
        }
        Err(error) => Finding { state: "unusable", advice: error.chain(), ..none },
    }
}
