//! `tightfit plan NETWORK`

use std::path::PathBuf;

use tightfit_conv::{Backend, Device};
use tightfit_network::Network;
use tightfit_plan::ASSUMED_RATES;
use tightfit_plan::step::StepFile;
use tightfit_report::plan as report;
use tightfit_units::Bytes;

use crate::failure::{Failure, check_outputs, first, print, write_file};
use crate::largest;
use crate::message;
use crate::model::{self, Opened};
use crate::options::{Batch, Budget, Common, Format, PlanOptions, Planning, Shares};
use crate::planning::{Goal, Prepared, Request, assumed_of, recorded_step};
use crate::session::{Session, backends, must_try_engines};

/// How to measure less.
const CHOICES: &str = "use a smaller --batch to measure less, or --assume or --backend replay:FILE to measure nothing";

pub fn run(options: &PlanOptions, common: &Common) -> Result<(), Failure> {
    let planning = &options.planning;
    if options.assume && options.out.is_some() {
        let why = "--assume cannot be used with --out: the assumed algorithms exist on no machine, so the plan could \
                   not run; use --measure instead of --assume, or save the figures with --format json";
        return Err(Failure::Usage(why.to_owned()));
    }
    if options.assume {
        must_try_engines(common, "--assume measures nothing")?;
    }
    if options.measure && common.backend.starts_with("replay:") {
        let why = "--measure cannot be used with --backend replay: a recording is already measured; drop one of them";
        return Err(Failure::Usage(why.to_owned()));
    }
    let PlanOptions { out, html, trace, plot, .. } = options;
    check_outputs([("--out", out), ("--html", html), ("--trace", trace), ("--plot", plot)])?;
    // A sweep sets the budgets itself.
    let unlimited = Planning { budget: Some(Budget::Bytes(Bytes::UNLIMITED)), ..planning.clone() };
    let planning = if options.sweep.is_some() { &unlimited } else { planning };
    // A recorded step, or a plan that Python saved with its step, is known by its content.
    let named = options.network.as_ref().map(PathBuf::from).filter(|path| StepFile::is_one(path));
    let (prepared, device, network) = match (options.step.as_ref().or(named.as_ref()), &options.network) {
        (Some(path), _) => {
            let (prepared, device) = recorded_step(planning, path)?;
            (prepared, device, None)
        }
        (None, Some(name)) => {
            let opened = model::open(name)?;
            let goal = goal(options, name, &opened)?;
            let network = opened.network;
            let found;
            let planning = if planning.batch == Some(Batch::Max) {
                found = largest::with_largest(planning, &network, goal, common)?;
                &found
            } else {
                planning
            };
            let measured = if options.assume { None } else { measured_by(options, common)? };
            let (prepared, device) = match measured {
                Some(backends) => {
                    let mut session = Session::with(backends, common)?;
                    let request = Request { planning, network: &network, goal, common, choices: CHOICES };
                    let prepared = request.prepare(&mut session)?;
                    (prepared, session.device().clone())
                }
                None => assumed_of(planning, &network, goal, common)?,
            };
            (prepared, device, Some(network))
        }
        (None, None) => return Err(Failure::Usage("name a network, or a recorded step with --step FILE".to_owned())),
    };
    if let Some(shares) = options.sweep {
        return write_sweep(options, common, &prepared, shares);
    }
    write_out(options, common, &prepared, &device, network.as_ref())
}

/// Plans under several budgets, prints the rows and writes the pictures.
fn write_sweep(options: &PlanOptions, common: &Common, prepared: &Prepared, shares: Shares) -> Result<(), Failure> {
    let (plans, rivals, whole) = prepared.sweep(shares)?;
    let title = format!("{}, mini-batch {}", prepared.step.name, prepared.step.batch);
    let sweep = report::Sweep { title: &title, plans: &plans, rivals: &rivals, whole };
    let rows = match common.format {
        Format::Table => sweep.table(),
        Format::Csv | Format::Json => sweep.values(),
    };
    let printed = super::print_grid(&rows, common.format);
    let plotted = options.plot.as_ref().map_or(Ok(()), |path| write_file(path, sweep.picture()));
    let drawn = options.html.as_ref().map_or(Ok(()), |path| write_file(path, sweep.page()));
    first([printed, plotted, drawn])
}

/// Plans, prints the plan and writes its files.
fn write_out(
    options: &PlanOptions,
    common: &Common,
    prepared: &Prepared,
    device: &Device,
    network: Option<&Network>,
) -> Result<(), Failure> {
    let mut plan = prepared.plan()?;
    plan.frozen.clone_from(&options.planning.freeze);
    // Only what was measured can be written.
    plan.device = Some(device.clone()).filter(|_| options.out.is_some() && network.is_some());
    let printed = print(&match common.format {
        Format::Table => report::table(&plan, device, super::terminal()),
        Format::Json => report::json(&plan, device),
        Format::Csv => report::csv(&plan),
    });
    let written = match &options.out {
        Some(path) => {
            let file = match network {
                Some(network) => plan.to_file(network, path),
                None => plan.to_step_file(path),
            };
            file.map_err(Failure::from).and_then(|file| write_file(path, file))
        }
        None => Ok(()),
    };
    let drawn = match &options.html {
        Some(path) => write_file(path, report::page(&plan, device)),
        None => Ok(()),
    };
    let traced = match &options.trace {
        Some(path) => write_file(path, report::trace(&plan, device)),
        None => Ok(()),
    };
    first([printed, written, drawn, traced])
}

/// The goal of the plan: by the options, or else training, or inference for a model that was exported for it.
fn goal(options: &PlanOptions, name: &str, opened: &Opened) -> Result<Goal, Failure> {
    let for_inference = opened.model.as_ref().is_some_and(|model| model.is_for_inference());
    if options.inference || for_inference && !options.training {
        if !options.inference {
            message::note(format_args!(
                "{} looks exported for inference: its batch normalizations are merged into convolutions, or it has none; \
                 inference is planned (add --training to plan training)",
                name
            ));
        }
        return Ok(Goal::Inference);
    }
    Goal::training(options.solver, options.momentum)
}

/// The backends to measure on. `None` if there is only a CPU and `--measure` is not set, with a note unless rates are named.
///
/// # Errors
/// The errors of the backend; [`Failure::Usage`] for `--out` with a plan that would not be measured.
fn measured_by(options: &PlanOptions, common: &Common) -> Result<Option<Vec<Box<dyn Backend>>>, Failure> {
    let backends = backends(common)?;
    let is_cpu = backends.first().is_some_and(|backend| backend.device().backend == "cpu");
    if options.measure || common.backend != "auto" || !is_cpu {
        return Ok(Some(backends));
    }
    if options.out.is_some() {
        let why = "--out: no GPU was found, so nothing would be measured and the plan could not run; add \
                   --measure to measure on the CPU";
        return Err(Failure::Usage(why.to_owned()));
    }
    if options.planning.costs.is_none() {
        message::note(format_args!(
            "no GPU was found, so nothing is measured; assuming the rates of {ASSUMED_RATES} (set others with --costs). To \
             measure on the CPU, add --measure; to use recorded measurements, add --backend replay:FILE"
        ));
    }
    Ok(None)
}
