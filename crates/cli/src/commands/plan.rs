//! `tightfit plan NETWORK`

use tightfit_core::network::Network;
use tightfit_core::report::plan as report;

use crate::failure::{Failure, print, write_file};
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
    let network = Network::open(&options.network)?;
    let (plan, device) = if options.assume {
        assumed_plan_of(planning, &network, *inference, common)?
    } else {
        let mut session = Session::open(common)?;
        let plan = plan_of(planning, &network, *inference, &mut session, common)?;
        (plan, session.device().clone())
    };
    print(&match common.format {
        Format::Table => report::table(&plan, &device, super::terminal()),
        Format::Json => report::json(&plan, &device),
        Format::Csv => report::grid(&plan).csv(),
    })?;
    if let Some(path) = &options.out {
        write_file(path, plan.to_file(&network, path)?)?;
    }
    if let Some(path) = &options.html {
        write_file(path, report::page(&plan, &device))?;
    }
    Ok(())
}
