//! Which algorithm is fastest where: every distinct convolution of the built-in networks named, for each operation.
//!
//! ```text
//! cargo run --release -p tightfit-cpu --example sweep -- 8 alexnet-1col googlenet        mini-batch, then networks
//! ```
//!
//! One line a kernel: layer, problem, and the algorithms by rising time in milliseconds. Left out are algorithms that
//! need more than 4 GiB of workspace. An algorithm three times slower than the best is run once.

use tightfit_conv::backend::Effort;
use tightfit_conv::{Backend, Layout, Operation, Problem, Types};
use tightfit_cpu::CpuBackend;
use tightfit_network::{built_in, distinct};
use tightfit_units::{Bytes, Nanos};

const MOST: Bytes = Bytes(4 << 30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [batch, networks @ ..] = &arguments[..] else { return Err("give a mini-batch and names of networks".into()) };
    let mut cpu = CpuBackend::new(None);
    println!("{}", cpu.device());
    for name in networks {
        let kernels = built_in(name)?.kernels(Some(batch.parse()?), &Operation::ALL, Types::F32, Layout::Nchw)?;
        for (problem, members) in distinct(&kernels) {
            let times = times(&mut cpu, &problem)?;
            let times: Vec<_> = times.iter().map(|(time, name)| format!("{name} {:.2}", time.as_millis())).collect();
            println!("{name}.{}  {problem}: {}", kernels[members[0]].layer, times.join(", "));
        }
    }
    Ok(())
}

/// The median time of each algorithm, fastest first.
fn times(cpu: &mut CpuBackend, problem: &Problem) -> Result<Vec<(Nanos, String)>, tightfit_units::Error> {
    let mut times: Vec<(Nanos, String)> = Vec::new();
    // From the last to the first in the table, so that the plain loops find a best time to be compared with.
    for offer in cpu.offers(problem)?.into_iter().rev() {
        if offer.workspace.is_ok_and(|workspace| workspace <= MOST) {
            let best = times.iter().map(|(time, _)| *time).min();
            let measurement = cpu.measure(problem, &offer.algorithm, &Effort { best, ..Effort::default() })?;
            times.push((measurement.time, offer.algorithm.name().to_owned()));
        }
    }
    times.sort();
    Ok(times)
}
