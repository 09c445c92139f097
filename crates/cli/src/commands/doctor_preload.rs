//! `tightfit doctor --preload`: whether `tightfit run` can intercept the convolutions of a Python environment, judged
//! from its files. Imports none of its packages and needs no GPU.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::findings::{Finding, Findings, preload_library};
use crate::failure::Failure;
use crate::options::Common;
use crate::preload::{Elf, Environment, Form, Preload};

/// Path, in PyTorch's wheel, of the library that calls cuDNN.
const TORCH: &str = "torch/lib/libtorch_cuda.so";
/// Packages that open cuDNN by name: the prefix of their distribution, and the package.
const OPENERS: [(&str, &str); 3] =
    [("jax_cuda12_plugin", "jax"), ("jax_cuda13_plugin", "jax"), ("onnxruntime_gpu", "onnxruntime")];

/// The findings, and the first obstacle.
#[derive(Default)]
struct Judgment {
    findings: Findings,
    obstacle: Option<String>,
}

impl Judgment {
    fn push(&mut self, what: &'static str, state: &'static str, detail: &str, advice: &str) {
        let (detail, advice) = (detail.to_owned(), advice.to_owned());
        self.findings.0.push(Finding { what, state, detail, path: None, advice });
    }

    fn good(&mut self, what: &'static str, detail: &str) {
        self.push(what, "ok", detail, "");
    }

    fn bad(&mut self, what: &'static str, detail: &str, advice: &str) {
        self.push(what, "missing", detail, advice);
        self.obstacle.get_or_insert_with(|| format!("{what}: {detail}"));
    }
}

/// Prints what was found.
///
/// # Errors
/// [`Failure::Wrong`] with the first obstacle, after the table, if interception will not work.
pub fn run(python: Option<&OsStr>, common: &Common) -> Result<(), Failure> {
    let mut judgment = Judgment::default();
    let python = python.map_or_else(|| OsString::from("python3"), OsStr::to_owned);
    let environment = Environment::ask(&python);
    match &environment {
        Some(found) => judgment.good("python", &format!("{}, {}", found.version, found.python.display())),
        None => {
            let detail = format!("{} could not be run", python.to_string_lossy());
            judgment.bad("python", &detail, "set the environment's interpreter with --python");
        }
    }
    let reached = environment.as_ref().map(|environment| clients(environment, &mut judgment)).unwrap_or_default();
    let form = libraries(environment.as_ref(), &python, common, &mut judgment);
    if let Some(environment) = &environment {
        known_gaps(environment, &mut judgment);
    }
    match tightfit_cuda::load::driver(None) {
        Ok(driver) => judgment.good("driver", &driver.path.display().to_string()),
        Err(error) => judgment.push(
            "driver",
            "missing",
            &error.to_string(),
            "install the NVIDIA driver, or start the container with the GPU; interception itself does not need it",
        ),
    }
    let verdict = match (&judgment.obstacle, reached, form) {
        (Some(_), ..) | (_, _, None) => None,
        (None, CudnnUse { links: true, .. }, _) => Some("will intercept its convolutions"),
        (None, CudnnUse { opens: true, .. }, Some(Form::Named)) => Some("will intercept its convolutions"),
        _ => {
            judgment.obstacle = Some("no package here calls cuDNN in a way that can be intercepted".to_owned());
            None
        }
    };
    match verdict {
        Some(verdict) => judgment.good("tightfit run", verdict),
        None => judgment.push("tightfit run", "will not work", "", "fix the items marked missing"),
    }
    judgment.findings.print(common.format)?;
    match judgment.obstacle {
        None => Ok(()),
        Some(obstacle) => Err(Failure::Wrong(format!("interception will not work here: {obstacle}"))),
    }
}

/// How the packages call cuDNN.
#[derive(Default)]
struct CudnnUse {
    links: bool,
    opens: bool,
}

/// The packages that call cuDNN, and how they are linked to it.
fn clients(environment: &Environment, judgment: &mut Judgment) -> CudnnUse {
    let mut reached = CudnnUse::default();
    for (prefix, what) in OPENERS {
        if let Some((name, version)) = environment.version_of(prefix) {
            judgment.good(what, &format!("{name} {version}, opens cuDNN by name"));
            reached.opens = true;
        }
    }
    let Some(folder) = environment.file("torch") else {
        if !reached.opens {
            let advice = "pip install torch, or name another interpreter with --python";
            judgment.bad("torch", "not installed", advice);
        }
        return reached;
    };
    let version = torch_version(&folder).unwrap_or_else(|| "unknown version".to_owned());
    let Some(library) = environment.file(TORCH) else {
        judgment.bad("torch", &format!("{version}, built without CUDA"), "install a CUDA build of torch");
        return reached;
    };
    match Elf::read(&library) {
        Ok(elf) if elf.needed.iter().any(|name| name == "libcudnn.so.9") => {
            let place = match (&elf.rpath, &elf.runpath) {
                (Some(_), _) => "DT_RPATH, so LD_PRELOAD reaches it and LD_LIBRARY_PATH does not",
                (None, Some(_)) => "DT_RUNPATH",
                (None, None) => "the loader's search path",
            };
            judgment.good("torch", &format!("{version}, links libcudnn.so.9 via {place}"));
            reached.links = true;
        }
        Ok(elf) => {
            let detail = match elf.needed.iter().find(|name| name.starts_with("libcudnn")) {
                Some(other) => format!("{version}, links {other}"),
                None => format!("{version}, does not link cuDNN: it has a copy built in, or none"),
            };
            judgment.bad("torch", &detail, "install a torch that links cuDNN 9, as PyTorch's own wheels do");
        }
        Err(error) => {
            judgment.bad("torch", &format!("{}: {error}", library.display()), "reinstall torch");
        }
    }
    reached
}

/// Versions that are known not to reach cuDNN for some convolutions: pytorch#166643.
fn known_gaps(environment: &Environment, judgment: &mut Judgment) {
    let numbers = |version: &str| version.split(['.', '+']).map_while(|part| part.parse().ok()).collect::<Vec<u32>>();
    let torch = environment.file("torch").and_then(|folder| torch_version(&folder));
    let cudnn = environment.version_of("nvidia_cudnn_cu");
    let (Some(torch), Some((name, cudnn))) = (torch, cudnn) else { return };
    if numbers(&torch).starts_with(&[2, 9]) && matches!(numbers(&cudnn)[..], [9, 8..=14, ..]) {
        let detail = format!("torch {torch} with cuDNN {cudnn} runs conv3d in 16 bits without cuDNN");
        let package = name.replace('_', "-");
        judgment.push(
            "3-D in 16 bits",
            "slow",
            &detail,
            &format!("pip install '{package}>=9.15', which torch 2.9 uses again (pytorch#166643)"),
        );
    }
}

/// The version in `torch/version.py`.
fn torch_version(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("version.py")).ok()?;
    let line = text.lines().find(|line| line.starts_with("__version__"))?;
    line.split(['\'', '"']).nth(1).map(str::to_owned)
}

/// Checks cuDNN, our library, and whether ours knows all of cuDNN's functions; returns the form that would be used.
fn libraries(
    environment: Option<&Environment>,
    python: &OsStr,
    common: &Common,
    judgment: &mut Judgment,
) -> Option<Form> {
    let [named, plain] = [("preload library", Form::Named), ("its plain form", Form::Plain)]
        .map(|(what, form)| preload_library(what, form));
    if named.state != "ok" {
        judgment.obstacle.get_or_insert_with(|| format!("{}: {}", named.what, named.detail));
    }
    let is_found = named.state == "ok";
    judgment.findings.0.extend([named, plain]);
    let cudnn = match tightfit_cuda::load::find_cudnn(common.cudnn.as_deref(), Some(python)) {
        Ok(cudnn) => cudnn,
        Err(error) => {
            judgment.bad("cuDNN", &error.to_string(), "pip install nvidia-cudnn-cu13, or name its folder with --cudnn");
            return None;
        }
    };
    let wheel = environment.and_then(|environment| environment.version_of("nvidia_cudnn_cu"));
    let wheel = wheel.map_or_else(String::new, |(name, version)| format!("{name} {version}, "));
    judgment.good("cuDNN", &format!("{wheel}{}", cudnn.display()));
    if !is_found {
        return None;
    }
    match Preload::over(&cudnn) {
        Ok(preload) => {
            let file = preload.form.file();
            let detail = match &preload.unknown[..] {
                [] => format!("all of this cuDNN's functions are known; run preloads {file}"),
                [first, ..] => format!(
                    "{} unknown ({first}, ..); run preloads {file}, and programs that open cuDNN by name are not reached",
                    preload.unknown.len()
                ),
            };
            judgment.good("functions", &detail);
            Some(preload.form)
        }
        Err(failure) => {
            judgment.bad("functions", &failure.text(), "");
            None
        }
    }
}
