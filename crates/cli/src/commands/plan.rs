//! `tightfit plan NETWORK`

use tightfit_core::network::Network;
use tightfit_core::report::plan as report;

use crate::failure::{Failure, check_writable, first, print, write_file};
use crate::options::{Common, Format, PlanOptions};
use crate::planning::{assumed_plan_of, plan_of};
use crate::session::Session;

pub fn run(options: &PlanOptions, common: &Common) -> Result<(), Failure> {
    let PlanOptions { planning, inference, .. } = options;
    if options.assume && options.out.is_some() {
        let why = "--assume with --out: no machine has the algorithms that are assumed, so such a plan cannot be carried \
                   out; leave --assume out to measure them, or write --format json to keep the figures";
        return Err(Failure::Usage(why.to_owned()));
    }
    for path in [&options.out, &options.html].into_iter().flatten() {
        check_writable(path)?;
    }
    let network = Network::open(&options.network)?;
    let (plan, device) = if options.assume {
        assumed_plan_of(planning, &network, *inference, common)?
    } else {
        let mut session = Session::open(common)?;
        let plan = plan_of(planning, &network, *inference, &mut session, common)?;
        (plan, session.device().clone())
    };
    let printed = print(&match common.format {
        Format::Table => report::table(&plan, &device, super::terminal()),
        Format::Json => report::json(&plan, &device),
        Format::Csv => report::grid(&plan).csv(),
    });
    let written = match &options.out {
        Some(path) => plan.to_file(&network, path).map_err(Failure::from).and_then(|file| write_file(path, file)),
        None => Ok(()),
    };
    let drawn = match &options.html {
        Some(path) => write_file(path, report::page(&plan, &device)),
        None => Ok(()),
    };
    first([printed, written, drawn])
}
