//! Divides the convolutions of a network so that the fastest algorithms fit a workspace limit, from measurements that were
//! recorded on an H200: no GPU is needed.

use tightfit_conv::Backend;
use tightfit_conv::candidate::Limit;
use tightfit_network::built_in;
use tightfit_profile::answer::{Request, optimize};
use tightfit_profile::survey::Env;
use tightfit_profile::{Recording, Replay, Selection};
use tightfit_units::{Bytes, Error};

const PROFILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz");

fn main() -> Result<(), Error> {
    let recorded = Replay::of(Recording::read(PROFILE.as_ref())?)?;
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(recorded)];

    // Each kernel may use 64 MiB.
    let selection = Selection::new(built_in("alexnet-1col")?, Some(256));
    let request = Request::new(selection, Limit::PerKernel(Bytes::mib(64)));
    let found = optimize(&request, &mut backends, &Env::default())?;

    for kernel in &found.kernels {
        println!("{} {}: {}", kernel.layer, kernel.problem.operation(), kernel.configuration);
    }
    println!("{} instead of {}", found.time(), found.undivided_time().unwrap_or_default());
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
