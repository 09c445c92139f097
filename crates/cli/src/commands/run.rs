//! `tightfit run -- COMMAND ..`: preloads our library in front of the command's cuDNN and execs the command.
//!
//! The process is replaced, not watched: signals, standard streams, process ID and exit code are the command's own. The
//! library reads its settings from environment variables, which work without this command too (MPI, containers):
//!
//! ```text
//! LD_PRELOAD=.../libtightfit_preload.so  TIGHTFIT_CUDNN=.../libcudnn.so.9  TIGHTFIT_WORKSPACE=67108864  python train.py
//! ```

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use tightfit_profile::survey::Sizes;
use tightfit_report::count;
use tightfit_units::Bytes;

use super::run_budget::Budgeted;
use super::run_report::{self, Limit};
use crate::failure::{Failure, check_outputs};
use crate::message;
use crate::options::{AutoOrBytes, Common, RunOptions, Tune, of_environment, started};
use crate::preload::{Form, Preload, find_program, python_of, supported};
use crate::session::{cache_path, device_numbers};

/// The environment variables of a limit per kernel and of a total.
const NAMES: [&str; 2] = ["TIGHTFIT_WORKSPACE", "TIGHTFIT_TOTAL_WORKSPACE"];
const OLD_SIZES: &str = "TIGHTFIT_POLICY";
const DEVICES: &str = "TIGHTFIT_DEVICES";
const SHIPPED: &str = "TIGHTFIT_SHIPPED";
const REPORT: &str = "TIGHTFIT_REPORT";
/// The report of a program under a budget, which the package writes.
const BUDGET_REPORT: &str = "TIGHTFIT_BUDGET_REPORT";
/// The trace of a program under a budget; its page has the same name.
const TRACE: &str = "TIGHTFIT_TRACE";
/// The process ID of the command: the library recognizes the command among its children by it.
const LAUNCHED: &str = "TIGHTFIT_RUN";

pub fn run(options: &RunOptions, common: &Common) -> Result<(), Failure> {
    let (mut command, budgeted) = prepared(options, common)?;
    if let Some(budgeted) = &budgeted {
        budgeted.watch();
    }
    let error = command.exec();
    if let Some(budgeted) = &budgeted {
        budgeted.forget();
    }
    Err(not_started(&command, &error))
}

/// Why a command cannot be started.
pub(super) fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    let next = match error.kind() {
        ErrorKind::NotFound => "; is it installed, and on PATH?",
        ErrorKind::PermissionDenied => "; is it executable?",
        _ => "",
    };
    Failure::Wrong(format!("cannot start {}: {error}{next}", command.get_program().to_string_lossy()))
}

/// Prepares the command with its whole environment, and prints the settings.
///
/// # Errors
/// [`Failure::Usage`] for options that do not go together; [`Failure::Wrong`] where a library or a package is missing.
pub(super) fn prepared(options: &RunOptions, common: &Common) -> Result<(Command, Option<Budgeted>), Failure> {
    let devices = devices(common)?;
    let given = started(&options.command)?;
    let (limit, sizes) = (limit(options)?, options.sizes.get()?);
    let tune = options.tune().map_err(Failure::Usage)?;
    check_trace(options)?;
    let found = match preloaded(&given, common) {
        // A budget needs only Python, and without a GPU the program runs as it is.
        Err(_) if !asks_for_cudnn(options, common) && (options.budget().is_some() || runs_as_it_is(options)) => None,
        found => Some(found?),
    };
    let over = found.as_ref().map(|(cudnn, preload)| (&**cudnn, preload));
    let mut variables = variables(options, common, (limit, sizes, tune), over)?;
    let budgeted = options
        .budget()
        .map(|budget| Budgeted::prepare(budget, options.recompute, options.compile, &given))
        .transpose()?;
    let command = budgeted.as_ref().map_or(&given, |budgeted| &budgeted.command);
    let [program, arguments @ ..] = &command[..] else {
        return Err(Failure::Usage("no command to run".to_owned()));
    };
    if let Some(budgeted) = &budgeted {
        variables.extend(budgeted.variables.iter().cloned());
    }
    if let Some(page) = &options.sweep {
        let page = if page.as_os_str() == "-" { page.clone() } else { absolute(page) };
        variables.push(("TIGHTFIT_SWEEP", page.into()));
    }
    if let Some(trace) = &options.trace {
        variables.push((TRACE, absolute(trace).into()));
    }
    let report = report(options);
    if let (Some(report), true) = (&report, options.budget().is_some()) {
        variables.push((BUDGET_REPORT, report.into()));
    } else if let (Some(report), Some((cudnn, _))) = (report, over) {
        // If the command does not exist, keep the report of an earlier one.
        if find_program(program).is_some() {
            match run_report::write(&report, limit, cudnn) {
                Err(failure) if options.report.is_some() => return Err(failure),
                Err(_) => message::say(format_args!(
                    "tightfit: cannot write the report {}; continuing without it",
                    report.display()
                )),
                Ok(()) => {}
            }
        }
        variables.push((REPORT, report.into()));
    }
    if !options.quiet {
        // The package describes the plan once it is made.
        if options.budget().is_none() {
            message::say(format_args!("tightfit: {}", brief(options, limit, tune)));
        }
        if common.verbose > 0 {
            match over {
                Some(over) => {
                    message::say(format_args!("tightfit: {}", summary(options, common, (limit, sizes, tune), over)));
                }
                None => {
                    message::say(format_args!("tightfit: no cuDNN to preload for; workspaces are the program's own"));
                }
            }
        }
    }
    let mut command = Command::new(program);
    // Remove the limit that was not chosen, the old name of the sizes, devices that cannot be read, and another command's process ID.
    for name in NAMES.into_iter().chain([OLD_SIZES, DEVICES, LAUNCHED, REPORT]) {
        command.env_remove(name);
    }
    if let Some(devices) = devices {
        variables.push((DEVICES, devices.into()));
    }
    command.args(arguments).envs(variables);
    Ok((command, budgeted))
}

/// Checks that the trace and its page can be written, and that neither is another output.
///
/// # Errors
/// [`Failure::Usage`] for a name that the page takes; the errors of [`check_outputs`].
fn check_trace(options: &RunOptions) -> Result<(), Failure> {
    let Some(trace) = &options.trace else { return Ok(()) };
    if trace.extension().is_some_and(|extension| extension == "html") {
        let better = trace.with_extension("json");
        return Err(Failure::Usage(format!(
            "--trace {} is the page beside the trace; name the trace itself, as in {}",
            trace.display(),
            better.display()
        )));
    }
    let page = Some(trace.with_extension("html"));
    check_outputs([("--report", &options.report), ("--trace", &options.trace), ("the page of --trace", &page)])
}

/// cuDNN, and the library to preload in front of it.
///
/// # Errors
/// [`Failure::Wrong`] if one of them is not found, or on another processor.
fn preloaded(command: &[OsString], common: &Common) -> Result<(PathBuf, Preload), Failure> {
    supported()?;
    let python = python_of(command);
    let cudnn = tightfit_cuda::load::find_cudnn(common.cudnn.as_deref(), python.as_deref()).map_err(|error| {
        Failure::Wrong(format!("{error}\nPyTorch's CUDA wheels include cuDNN; otherwise, name its folder with --cudnn"))
    })?;
    let preload = Preload::over(&cudnn)?;
    Ok((cudnn, preload))
}

/// Whether the options ask for something that only the preloaded library can do.
fn asks_for_cudnn(options: &RunOptions, common: &Common) -> bool {
    common.cudnn.is_some()
        || options.workspace.is_some()
        || options.total_workspace.is_some()
        || NAMES
            .into_iter()
            .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "auto"))
}

/// The devices to work on, as given; none means all. Device names in the environment are for `split`.
///
/// # Errors
/// [`Failure::Usage`] for names on the command line.
fn devices(common: &Common) -> Result<Option<String>, Failure> {
    let given = common.devices.join(",");
    match device_numbers(common) {
        _ if given.is_empty() => Ok(None),
        _ if common.devices.iter().all(|word| word.trim().parse::<usize>().is_ok()) => Ok(Some(given)),
        Ok(_) => Ok(Some(given)),
        Err(_) if std::env::var_os(DEVICES).is_some_and(|value| value == *given) => {
            message::say(format_args!(
                "tightfit: {DEVICES} is {given:?}, not device numbers such as 0,1; using all devices"
            ));
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Absolute path of the report, since the command may change folders; each process fills in `%p`.
fn report(options: &RunOptions) -> Option<PathBuf> {
    let of_environment = || std::env::var_os(REPORT).filter(|value| !value.is_empty()).map(PathBuf::from);
    options.report.clone().or_else(of_environment).map(|path| absolute(&path))
}

/// The limit from the command line, or else from the environment, or else the default.
///
/// # Errors
/// [`Failure::Usage`] if the environment names two, or one that is not UTF-8; the errors of reading a size.
fn limit(options: &RunOptions) -> Result<Limit, Failure> {
    match (options.workspace, options.total_workspace) {
        (Some(each), _) => return Ok(Limit::PerKernel(each)),
        (None, Some(total)) => return Ok(Limit::Total(total)),
        (None, None) => {}
    }
    match (of_environment(NAMES[0])?, of_environment(NAMES[1])?) {
        (Some(_), Some(_)) => Err(Failure::Usage(format!("{} and {} are both set; set only one", NAMES[0], NAMES[1]))),
        (Some(each), None) => Ok(Limit::PerKernel(each)),
        (None, Some(total)) => Ok(Limit::Total(total)),
        (None, None) => Ok(Limit::PerKernel(AutoOrBytes::Auto)),
    }
}

/// The environment variables to add for the command.
fn variables(
    options: &RunOptions,
    common: &Common,
    (limit, sizes, tune): (Limit, Sizes, Tune),
    over: Option<(&Path, &Preload)>,
) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut variables: Vec<(&'static str, OsString)> = Vec::new();
    if let Some((cudnn, preload)) = over {
        variables.extend([("LD_PRELOAD", libraries(preload)?), ("TIGHTFIT_CUDNN", cudnn.into())]);
    }
    let (name, size) = match limit {
        Limit::PerKernel(each) => (NAMES[0], each.to_string()),
        Limit::Total(total) => (NAMES[1], AutoOrBytes::Bytes(total).to_string()),
    };
    let way = tune.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    variables.extend([
        (name, size.into()),
        ("TIGHTFIT_SIZES", sizes.name().into()),
        ("TIGHTFIT_DIVIDE", options.divide.get().name().into()),
        ("TIGHTFIT_TUNE", way.into()),
        ("TIGHTFIT_TUNE_BUDGET", options.tune_budget.to_string().into()),
        // Absolute, since the command may change folders first.
        ("TIGHTFIT_CACHE", cache_path(common).map_or_else(|| "none".into(), |path| absolute(&path).into())),
    ]);
    match &options.shipped {
        Some(shipped) if shipped.as_os_str() == "none" => variables.push((SHIPPED, "none".into())),
        Some(shipped) => variables.push((SHIPPED, absolute(shipped).into())),
        None => {}
    }
    // A program without convolutions still has a model to fit. If there is no GPU, the first line has already reported
    // it.
    if options.budget().is_none() && has_gpu() {
        variables.push((LAUNCHED, std::process::id().to_string().into()));
    }
    if options.quiet {
        variables.push(("TIGHTFIT_QUIET", "1".into()));
    }
    if common.exact_class {
        variables.push(("TIGHTFIT_EXACT_CLASS", "1".into()));
    }
    if common.deterministic {
        variables.push(("TIGHTFIT_DETERMINISTIC", "1".into()));
    }
    if common.verbose > 0 {
        variables.push(("TIGHTFIT_VERBOSE", "1".into()));
    }
    if common.verbose > 0 && std::env::var_os("TIGHTFIT_LOG").is_none() {
        variables.push(("TIGHTFIT_LOG", "info".into()));
    }
    Ok(variables)
}

/// The list for the loader: our library, then the libraries that were preloaded before.
///
/// # Errors
/// [`Failure::Wrong`] for a path that the loader cannot read.
fn libraries(preload: &Preload) -> Result<OsString, Failure> {
    if preload.path.to_string_lossy().contains([':', ' ']) {
        let path = preload.path.display();
        return Err(Failure::Wrong(format!(
            "{path}: LD_PRELOAD does not support paths with a colon or a space; set TIGHTFIT_PRELOAD to another folder, \
             with the library in it"
        )));
    }
    let mut libraries = preload.path.clone().into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    Ok(libraries)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Files of the driver and of WSL; one of them exists where a GPU may be used.
const GPU: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"];

/// Whether a program may find a GPU here, or a library that stands for one.
fn has_gpu() -> bool {
    std::env::var_os("TIGHTFIT_CUDA").is_some() || GPU.iter().any(|file| Path::new(file).exists())
}

/// Whether the library has nothing to do or to report.
fn runs_as_it_is(options: &RunOptions) -> bool {
    !has_gpu() && report(options).is_none()
}

/// The first line, in few words.
fn brief(options: &RunOptions, limit: Limit, tune: Tune) -> String {
    if std::env::var_os("TIGHTFIT_OFF").is_some_and(|value| value == "1") {
        return "switched off by TIGHTFIT_OFF".to_owned();
    }
    if !has_gpu() {
        return "no GPU here, so there are no convolutions to tune; the program runs as it is".to_owned();
    }
    let within = match limit {
        Limit::PerKernel(AutoOrBytes::Auto) => "in no more memory than the program's own choices".to_owned(),
        Limit::PerKernel(AutoOrBytes::Bytes(Bytes::UNLIMITED)) | Limit::Total(Bytes::UNLIMITED) => {
            "in unlimited workspace".to_owned()
        }
        Limit::PerKernel(AutoOrBytes::Bytes(each)) => format!("in {each} of workspace per kernel"),
        Limit::Total(total) => format!("in {total} of workspace in total"),
    };
    match tune {
        Tune::Measure | Tune::First if options.tune_budget.limit().is_none() => {
            format!("tuning convolutions without a limit of time, {within} (-v for paths)")
        }
        Tune::Measure | Tune::First => {
            format!("tuning convolutions for up to {}, {within} (-v for paths)", options.tune_budget)
        }
        Tune::Cached => format!("convolutions by what the cache holds, {within} (-v for paths)"),
        Tune::Heuristic => format!("changing only convolutions that do not fit, {within} (-v for paths)"),
    }
}

/// The first line with `-v`: all settings and paths.
fn summary(
    options: &RunOptions,
    common: &Common,
    (limit, sizes, tune): (Limit, Sizes, Tune),
    (cudnn, preload): (&Path, &Preload),
) -> String {
    let limit = match limit {
        Limit::PerKernel(AutoOrBytes::Auto) => "the workspace of the program's own choices".to_owned(),
        Limit::PerKernel(AutoOrBytes::Bytes(Bytes::UNLIMITED)) | Limit::Total(Bytes::UNLIMITED) => {
            "unlimited workspace".to_owned()
        }
        Limit::PerKernel(AutoOrBytes::Bytes(each)) => format!("{each} of workspace per kernel"),
        Limit::Total(total) => format!("{total} of workspace in total"),
    };
    let cache = cache_path(common).map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    let shipped = options.shipped.as_ref().map_or_else(String::new, |file| format!(", shipped {}", file.display()));
    let way = tune.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let budget = match tune {
        Tune::Measure | Tune::First if options.tune_budget.limit().is_none() => " without limit".to_owned(),
        Tune::Measure | Tune::First => format!(" within {}", options.tune_budget),
        Tune::Cached | Tune::Heuristic => String::new(),
    };
    let off = if std::env::var_os("TIGHTFIT_OFF").is_some_and(|value| value == "1") {
        "; switched off by TIGHTFIT_OFF"
    } else {
        ""
    };
    let form = match (preload.form, &preload.unknown[..]) {
        (Form::Plain, [first, ..]) => {
            let functions = count(preload.unknown.len(), "function");
            format!(
                "; this cuDNN has {functions} unknown here ({first}, ..): programs that open it by name are not reached"
            )
        }
        _ => String::new(),
    };
    format!(
        "{limit}, sizes {sizes}, tune {way}{budget}, cache {cache}{shipped}; preloading {} in front of {}{form}{off}",
        preload.path.display(),
        cudnn.display()
    )
}
