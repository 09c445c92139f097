//! What bits of signs would save in networks: maps that going backward only ReLUs read, kept as one bit per element.
//!
//! `plan-signs [NETWORK:BATCH ..]`: the bytes of such maps. Where they are at least 1% of the baseline's, also how much longer a step
//! takes in 80, 60 and 40% of these bytes: with the maps as they are, with bits instead, and with the ReLUs of all inputs of a
//! concatenation moved behind it, which computes the same numbers and reads the concatenation going backward.

use tightfit_conv::Types;
use tightfit_network::{Builder, LayerId, LayerKind, Network};
use tightfit_plan::step::{Rerun, Residence, Use};
use tightfit_plan::{
    Access, Algorithms, CostModel, Fronts, Lowered, Mode, NetworkTensor, Options, Policy, Role, Step, TensorId,
    Workload, plan,
};
use tightfit_units::{Bytes, Error, Nanos};

const NETWORKS: &str =
    "alexnet:256 overfeat:128 vgg16:64 googlenet:128 resnet18:128 resnet50:64 densenet40:64 densenet121:64";
const SHARES: [u64; 3] = [80, 60, 40];
/// How long a search takes at most.
const SEARCH: Nanos = Nanos(10_000_000_000);

fn main() -> Result<(), Error> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let all = NETWORKS.split(' ').map(str::to_owned).collect();
    let costs = CostModel::h200();
    println!(
        "network,batch,types,baseline_bytes,maps,bytes,percent,share,overhead_percent,with_bits,behind_concatenations"
    );
    for name in if named.is_empty() { all } else { named } {
        let (name, batch) = name.split_once(':').unwrap_or((&name, "64"));
        let network = Network::open(name)?;
        let moved = behind_concatenations(&network)?;
        let batch = batch.parse().unwrap_or(64);
        for types in [Types::F32, Types::Bf16] {
            let step_of = |network| -> Result<(Step, Lowered), Error> {
                let workload = Workload::new(network, batch, types, Mode::Training)?;
                Ok((workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?, workload.lower()?))
            };
            let (step, lowered) = step_of(&network)?;
            let (bits, maps, bytes) = with_bits(&network, &step, &lowered, types);
            let memory = Options { policy: Policy::Baseline, algorithms: Algorithms::Memory, ..Options::default() };
            let baseline = plan(&step, &costs, &memory)?.peak.0;
            let percent = 100.0 * bytes as f64 / baseline as f64;
            let steps = [step, bits, step_of(&moved)?.0];
            if percent < 1.0 {
                println!("{name},{batch},{types},{baseline},{maps},{bytes},{percent:.1},,,,");
                continue;
            }
            for share in SHARES {
                let options =
                    Options { budget: Bytes(baseline / 100 * share), plan_time: Some(SEARCH), ..Options::default() };
                let overhead = |step| match plan(step, &costs, &options) {
                    Ok(plan) => format!("{:.1}", 100.0 * plan.overhead()),
                    Err(_) => "-".to_owned(),
                };
                let overheads: Vec<String> = steps.iter().map(overhead).collect();
                println!(
                    "{name},{batch},{types},{baseline},{maps},{bytes},{percent:.1},{share},{}",
                    overheads.join(",")
                );
            }
        }
    }
    Ok(())
}

/// The step with bits in place of maps that going backward only ReLUs read; the number of these maps, and their bytes.
fn with_bits(network: &Network, step: &Step, lowered: &Lowered, types: Types) -> (Step, usize, u64) {
    let (mut step, forward) = (step.clone(), step.forward());
    let (mut maps, mut bytes) = (0, 0);
    for id in 0..step.tensors.len() {
        let is_map = matches!(lowered.tensors[id], NetworkTensor::FeatureMap(_));
        let mut readers = Vec::new();
        let mut reads_signs = true;
        for (at, operation) in step.operations.iter().enumerate().skip(forward) {
            let of = &lowered.passes[at];
            for (_, role) in operation.uses.iter().zip(&of.roles).filter(|(used, _)| used.tensor == TensorId(id)) {
                reads_signs &= *role == Role::Y && network.layer(of.layer).kind == LayerKind::Relu;
                readers.push(at);
            }
        }
        let writes = |at: &usize| {
            step.operations[*at].uses.iter().any(|used| used.tensor.0 == id && used.access != Access::Read)
        };
        let writer = (0..forward).rev().find(writes);
        let (true, true, false, Some(writer)) = (is_map, reads_signs, readers.is_empty(), writer) else { continue };
        let mut signs = step.tensors[id].clone();
        (maps, bytes) = (maps + 1, bytes + signs.bytes.0);
        signs.bytes = Bytes(signs.bytes.0.div_ceil(8 * types.storage().size() as u64));
        (signs.residence, signs.sample_bytes) = (Residence::Temporary, None);
        step.tensors.push(signs);
        let tensor = TensorId(step.tensors.len() - 1);
        step.operations[writer].uses.push(Use { tensor, access: Access::Write, rerun: Rerun::ReadOnly });
        for at in readers {
            step.operations[at]
                .uses
                .iter_mut()
                .filter(|used| used.tensor.0 == id)
                .for_each(|used| used.tensor = tensor);
        }
    }
    (step, maps, bytes)
}

/// The network with one ReLU behind each concatenation whose inputs are all ReLUs that nothing else reads.
fn behind_concatenations(network: &Network) -> Result<Network, Error> {
    let is_relu = |id: &LayerId| network.layer(*id).kind == LayerKind::Relu && network.consumers(*id).len() == 1;
    let gathers = |id: LayerId| {
        let layer = network.layer(id);
        layer.kind == LayerKind::Concat && layer.inputs.iter().all(is_relu)
    };
    let mut net = Builder::new(network.name());
    let mut made: Vec<Option<LayerId>> = Vec::new();
    for (id, layer) in network.iter() {
        if is_relu(&id) && gathers(network.consumers(id)[0]) {
            made.push(made[layer.inputs[0].index()]);
            continue;
        }
        let inputs: Vec<Option<LayerId>> = layer.inputs.iter().map(|input| made[input.index()]).collect();
        net.layer(&layer.name, layer.kind.clone(), &inputs);
        if gathers(id) {
            let concatenation = net.here();
            net.layer(format!("{}.relu", layer.name), LayerKind::Relu, &[concatenation]);
        }
        made.push(net.here());
    }
    net.finish()
}
