//! Random training steps of a few operations, for searches that try everything.

use std::sync::Arc;

use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Types};
use tightfit_plan::Kind;
use tightfit_plan::step::{
    Access, Again, Cost, Group, GroupId, Mode, Operation, Rerun, Residence, Resource, Stage, Step, Tag, Tensor,
    TensorId, Use,
};
use tightfit_units::{Bytes, Nanos};

/// Pseudo-random numbers below a bound, with a fixed seed.
pub fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// All tensors have a multiple of this many bytes.
pub const UNIT: u64 = 256;

/// The features of a random step in addition to maps and their gradients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// Some operations have a choice of time and workspace.
    pub choices: bool,
    /// Some operations change the map before in place.
    pub in_place: bool,
    /// All read the same weights.
    pub resident: bool,
}

fn listed(time: u64, workspace: u64) -> Configuration {
    let candidate = Candidate {
        algorithm: Algorithm::new(&format!("of {workspace}")),
        micro_batch: 1,
        time: Nanos(time),
        workspace: Bytes(workspace),
    };
    Configuration::new(vec![candidate], DivisionCost::default())
}

/// A step of `forward` operations that each write a map, or change the one before in place, and as many that go back.
pub fn small(forward: usize, extras: Extras, next: &mut impl FnMut(u64) -> u64) -> Step {
    let mut tensors: Vec<Tensor> = Vec::new();
    let add = |tensors: &mut Vec<Tensor>, name: String, units: u64, residence: Residence| {
        tensors.push(Tensor {
            name,
            bytes: Bytes(UNIT * units),
            kind: if residence == Residence::Movable { Kind::FeatureMaps } else { Kind::GradientMaps },
            residence,
            is_result: false,
            groups: Vec::new(),
            alias: None,
            in_place_of: None,
            sample_bytes: None,
        });
        tensors.len() - 1
    };
    let used = |tensor: usize, access: Access| Use { tensor: TensorId(tensor), access, rerun: Rerun::Same };
    // For each forward operation: what it reads, and its map.
    let mut maps: Vec<(Vec<usize>, usize, bool)> = Vec::new();
    for at in 0..forward {
        let before = maps.last().map(|of: &(Vec<usize>, usize, bool)| of.1);
        match before.filter(|_| extras.in_place && at > 0 && next(3) == 0) {
            Some(before) => maps.push((Vec::new(), before, true)),
            None => {
                let map = add(&mut tensors, format!("map {at}"), 1 + next(6), Residence::Movable);
                let mut reads: Vec<usize> = before.into_iter().collect();
                if at > 1 && next(3) == 0 {
                    reads.push(maps[next(at as u64 - 1) as usize].1);
                    reads.sort_unstable();
                    reads.dedup();
                }
                maps.push((reads, map, false));
            }
        }
    }
    let weights = extras.resident.then(|| add(&mut tensors, "weights".to_owned(), 1, Residence::Resident));
    let gradients: Vec<usize> =
        (0..forward).map(|at| add(&mut tensors, format!("gradient {at}"), 1 + next(3), Residence::Temporary)).collect();
    let mut operations = Vec::new();
    let mut operation = |name: String, stage: Stage, uses: Vec<Use>, cost: Cost, again: Again| {
        operations.push(Operation {
            group: GroupId(0),
            name,
            stage,
            tag: Tag::Other,
            resource: Resource::Device,
            uses,
            cost,
            again,
            independent_samples: true,
            sums: None,
            workspaces: Vec::new(),
        });
    };
    for (at, (reads, map, in_place)) in maps.iter().enumerate() {
        let mut uses: Vec<Use> = reads.iter().chain(&weights).map(|read| used(*read, Access::Read)).collect();
        uses.push(used(*map, if *in_place { Access::Add } else { Access::Write }));
        let again = if at == 0 || next(6) == 0 { Again::Never } else { Again::Allowed };
        operation(format!("forward {at}"), Stage::Forward, uses, Cost::Fixed(Nanos(1000 + 100 * next(90))), again);
    }
    for at in (0..forward).rev() {
        let mut reads = maps[at].0.clone();
        if next(2) == 0 || reads.is_empty() {
            reads.push(maps[at].1);
        }
        let mut uses: Vec<Use> = reads.iter().chain(&weights).map(|read| used(*read, Access::Read)).collect();
        if at + 1 < forward {
            uses.push(used(gradients[at + 1], Access::Read));
        }
        uses.push(used(gradients[at], Access::Write));
        let time = 1000 + 100 * next(90);
        let cost = match extras.choices && next(2) == 0 {
            true => Cost::Listed(Arc::from([listed(time + 1500, 0), listed(time, UNIT * (1 + next(4)))])),
            false => Cost::Fixed(Nanos(time)),
        };
        operation(format!("backward {at}"), Stage::Backward, uses, cost, Again::Never);
    }
    let group = Group { name: "all".to_owned(), input: Bytes::ZERO, output: Bytes::ZERO, weights: Bytes::ZERO };
    Step {
        name: "small".to_owned(),
        batch: 1,
        types: Types::F32,
        mode: Mode::Training,
        tensors,
        operations,
        groups: vec![group],
    }
}
