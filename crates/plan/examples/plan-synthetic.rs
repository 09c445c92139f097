//! Planning time and gap on synthetic steps: chains, branches, U-Nets and transformer blocks, at shares of their live bytes.
//!
//! ```sh
//! cargo run --release -p tightfit-plan --example plan-synthetic -- 600 2000 5000
//! SHARES=60,30 cargo run --release -p tightfit-plan --example plan-synthetic -- 2000
//! ```

use std::time::Instant;

use tightfit_conv::Types;
use tightfit_plan::step::{
    Access, Again, Cost, Group, GroupId, Mode, Operation, Rerun, Residence, Resource, Stage, Step, Tag, Tensor,
    TensorId, Use,
};
use tightfit_plan::{CostModel, Kind, Options, Policy, plan};
use tightfit_units::{Bytes, Nanos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shares = std::env::var("SHARES").unwrap_or_else(|_| "80,60,40,30".to_owned());
    let shares: Vec<u64> = shares.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let sizes: Vec<usize> = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<_, _>>()?;
    println!("step operations share budget time overhead gap moved recomputed planned-in");
    let costs = CostModel::h200();
    for operations in sizes {
        for (name, make) in [
            ("chain", chain as fn(usize) -> Maker),
            ("branches", branches),
            ("unet", unet),
            ("transformer", transformer),
        ] {
            let step = make(operations).step(name);
            let free = plan(&step, &costs, &Options { policy: Policy::Overlap, ..Options::default() })?;
            for share in &shares {
                let budget = Bytes(free.most_live.0 / 100 * share);
                let options = Options { policy: Policy::Optimal, budget, ..Options::default() };
                let start = Instant::now();
                let planned = plan(&step, &costs, &options);
                let took = start.elapsed();
                let (count, head) =
                    (step.operations.len(), format!("{name} {} {share}% {budget}", step.operations.len()));
                match planned {
                    Ok(plan) => println!(
                        "{head} {} {:+.2}% {} {} {} {took:.2?}",
                        plan.step_time,
                        plan.overhead() * 100.0,
                        plan.gap.map_or("-".to_owned(), |gap| format!("{:.2}%", gap * 100.0)),
                        plan.offloaded,
                        plan.recomputed,
                    ),
                    Err(error) => println!("{head}, {count} operations: {error} {took:.2?}"),
                }
            }
        }
    }
    Ok(())
}

/// A step in the making: its forward operations.
#[derive(Default)]
struct Maker {
    /// Bytes of each map.
    maps: Vec<u64>,
    /// For each operation: what it reads, time in us, workspace in bytes, and whether its backward pass reads its output.
    forward: Vec<(Vec<usize>, u64, u64, bool)>,
    state: u64,
}

impl Maker {
    fn new() -> Maker {
        Maker { state: 3, ..Maker::default() }
    }

    /// A pseudo-random number below a bound, with a fixed seed.
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % bound
    }

    /// An operation that writes a map of `mib` MiB.
    fn run(&mut self, reads: &[usize], mib: u64, micros: u64, workspace_mib: u64, reads_output: bool) -> usize {
        self.maps.push(mib.max(1) << 20);
        self.forward.push((reads.to_vec(), micros, workspace_mib << 20, reads_output));
        self.maps.len() - 1
    }

    /// A convolution, a normalization and an activation.
    fn conv(&mut self, from: usize, mib: u64, work: u64) -> usize {
        let extra = self.below(4) * mib / 8;
        let conv = self.run(&[from], mib, work * mib, extra, false);
        let norm = self.run(&[conv], mib, 1 + mib, 0, false);
        self.run(&[norm], mib, 1 + mib * 2 / 3, 0, true)
    }

    /// The step: the operations forward, then one backward for each.
    fn step(&self, name: &str) -> Step {
        let count = self.forward.len();
        let tensor = |name: String, bytes: u64, residence: Residence| Tensor {
            name,
            bytes: Bytes(bytes),
            kind: if residence == Residence::Movable { Kind::FeatureMaps } else { Kind::GradientMaps },
            residence,
            is_result: false,
            groups: Vec::new(),
            alias: None,
            in_place_of: None,
            sample_bytes: None,
        };
        let used = |tensor: usize, access: Access| Use { tensor: TensorId(tensor), access, rerun: Rerun::Same };
        let mut tensors: Vec<Tensor> = self
            .maps
            .iter()
            .enumerate()
            .map(|(at, bytes)| tensor(format!("map {at}"), *bytes, Residence::Movable))
            .collect();
        tensors.extend(
            self.maps
                .iter()
                .enumerate()
                .map(|(at, bytes)| tensor(format!("gradient {at}"), *bytes, Residence::Temporary)),
        );
        let operation = |name: String, stage: Stage, uses: Vec<Use>, micros: u64, again: Again| Operation {
            group: GroupId(0),
            name,
            stage,
            tag: Tag::Other,
            resource: Resource::Device,
            uses,
            cost: Cost::Fixed(Nanos(micros * 1000)),
            again,
            independent_samples: true,
            sums: None,
            workspaces: Vec::new(),
        };
        let mut operations: Vec<Operation> = Vec::with_capacity(2 * count);
        for (at, (reads, micros, _, _)) in self.forward.iter().enumerate() {
            let uses = reads.iter().map(|read| used(*read, Access::Read)).chain([used(at, Access::Write)]).collect();
            let again = if at == 0 { Again::Never } else { Again::Allowed };
            operations.push(operation(format!("forward {at}"), Stage::Forward, uses, *micros, again));
        }
        let mut has_gradient = vec![false; count];
        for (at, (reads, micros, _, reads_output)) in self.forward.iter().enumerate().rev() {
            let mut uses: Vec<Use> = match reads_output {
                true => vec![used(at, Access::Read)],
                false => reads.iter().map(|read| used(*read, Access::Read)).collect(),
            };
            if has_gradient[at] {
                uses.push(used(count + at, Access::Read));
            }
            for &read in reads {
                let access = if std::mem::replace(&mut has_gradient[read], true) { Access::Add } else { Access::Write };
                uses.push(used(count + read, access));
            }
            operations.push(operation(format!("backward {at}"), Stage::Backward, uses, 2 * micros, Again::Never));
        }
        let touched: Vec<usize> = operations.iter().flat_map(|of| of.uses.iter().map(|used| used.tensor.0)).collect();
        let is_used = |tensor: &usize| touched.contains(tensor);
        let kept: Vec<usize> = (0..tensors.len()).filter(is_used).collect();
        for of in &mut operations {
            for used in &mut of.uses {
                used.tensor.0 = kept.partition_point(|kept| *kept < used.tensor.0);
            }
        }
        Step {
            name: name.to_owned(),
            batch: 1,
            types: Types::F32,
            mode: Mode::Training,
            tensors: kept.into_iter().map(|place| tensors[place].clone()).collect(),
            operations,
            groups: vec![Group {
                name: "all".to_owned(),
                input: Bytes::ZERO,
                output: Bytes::ZERO,
                weights: Bytes::ZERO,
            }],
        }
    }
}

/// Convolutions one after another, whose maps shrink.
fn chain(operations: usize) -> Maker {
    let mut maker = Maker::new();
    let mut last = maker.run(&[], 64, 200, 0, false);
    while 2 * maker.forward.len() + 6 <= operations {
        let left = 100 - 80 * 2 * maker.forward.len() as u64 / operations as u64;
        let mib = left * (8 + maker.below(8)) / 16;
        let work = 1 + maker.below(6);
        last = maker.conv(last, mib, work);
    }
    maker
}

/// Blocks of four branches of different depth, joined.
fn branches(operations: usize) -> Maker {
    let mut maker = Maker::new();
    let mut last = maker.run(&[], 64, 200, 0, false);
    while 2 * maker.forward.len() + 44 <= operations {
        let mib = 8 + maker.below(24);
        let ends: Vec<usize> = (0..4)
            .map(|branch| {
                let mut end = last;
                for _ in 0..=branch / 2 {
                    let work = 1 + maker.below(5);
                    end = maker.conv(end, mib, work);
                }
                end
            })
            .collect();
        last = maker.run(&ends, 4 * mib, 1 + 4 * mib, 0, false);
    }
    maker
}

/// Levels down and up again, with a skip at each.
fn unet(operations: usize) -> Maker {
    let mut maker = Maker::new();
    let levels = 6;
    let per_level = ((operations / 2).saturating_sub(20) / (levels * 2) / 3).max(1);
    let mut last = maker.run(&[], 128, 200, 0, false);
    let mut skips = Vec::new();
    for level in 0..levels {
        for _ in 0..per_level {
            let work = 2 + maker.below(4);
            last = maker.conv(last, 160 >> level, work);
        }
        skips.push(last);
        last = maker.run(&[last], (160 >> level) / 4, 40, 0, true);
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        last = maker.run(&[last, skip], 320 >> level, 1 + (320 >> level), 0, false);
        for _ in 0..per_level {
            let work = 2 + maker.below(4);
            last = maker.conv(last, 160 >> level, work);
        }
    }
    maker
}

/// Attention and two products with an activation between them, all of the same size.
fn transformer(operations: usize) -> Maker {
    let mut maker = Maker::new();
    let mut last = maker.run(&[], 36, 100, 0, false);
    while 2 * maker.forward.len() + 20 <= operations {
        let norm = maker.run(&[last], 36, 24, 0, false);
        let products = maker.run(&[norm], 108, 180, 0, false);
        let attention = maker.run(&[products], 36, 150, 16, true);
        let out = maker.run(&[attention], 36, 63, 0, false);
        let middle = maker.run(&[last, out], 36, 35, 0, false);
        let norm = maker.run(&[middle], 36, 24, 0, false);
        let wide = maker.run(&[norm], 148, 242, 0, false);
        let active = maker.run(&[wide], 148, 85, 0, false);
        let narrow = maker.run(&[active], 36, 242, 0, false);
        last = maker.run(&[middle, narrow], 36, 35, 0, false);
    }
    maker
}
