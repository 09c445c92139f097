//! Layers that share numbers, on the mock libraries.

use tightfit_onnx::{Shared, Slot};
use tightfit_train::Learned;

use super::*;

#[test]
fn shared_parameters_stay_equal_and_match_the_cpu() {
    let network = sums();
    let layer = |name: &str| network.iter().find(|(_, layer)| layer.name == name).unwrap().0;
    let pairs = [("3x3", Slot::Weight), ("3x3.bn", Slot::Scale), ("3x3.bn", Slot::Shift), ("3x3.bn", Slot::Mean)];
    let shared = pairs.map(|(name, slot)| {
        let uses = ["s1", "s2"].map(|block| (layer(&format!("{block}.{name}")), slot)).to_vec();
        Shared { name: name.to_owned(), is_initializer: true, uses }
    });
    fn learned<M: Machine>(workload: &Workload<'_>, schedule: &Checked, machine: M, shared: &[Shared]) -> Learned {
        let solver = Solver::default();
        let mut engine = Engine::with_shared(workload, schedule, machine, solver, Poison::Freed, shared).unwrap();
        for step in 0..3 {
            let (samples, labels) = batch(workload, step);
            engine.step(&samples, &labels).unwrap();
        }
        engine.learned().unwrap()
    }
    for (types, layout) in [(Types::F32, Layout::Nchw), (Types::F16F32, Layout::Nhwc)] {
        let workload = Workload::new(&network, 2, types, Mode::Training).unwrap().with_layout(layout).unwrap();
        let mocks = Mocks::new();
        let kernels = kernels(&workload, &mocks.options());
        let schedule = plan_of(&workload, &kernels, Policy::VdnnAll).schedule;
        let on = |graph| {
            mocks.reset();
            let machine = CudaMachine::open(&mocks.options(), Modes { graph, ..Modes::default() }).unwrap();
            learned(&workload, &schedule, machine, &shared)
        };
        let (plain, graph) = (on(false), on(true));
        assert!(plain == graph, "{types}");
        for (name, tensor) in [
            ("3x3", NetworkTensor::Weights as fn(_) -> _),
            ("3x3.bn", NetworkTensor::Weights),
            ("3x3", NetworkTensor::MasterWeights),
        ] {
            let [one, other] = ["s1", "s2"].map(|block| plain.get(&tensor(layer(&format!("{block}.{name}")))));
            assert_eq!(one, other, "{types} {name}");
        }
        if types == Types::F32 {
            let cpu = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
            let resident = everything_resident(&cpu, "explicit-gemm", 2);
            let budgets = Budgets { device: resident.device_bytes, host: resident.host_bytes };
            let resident = Checked::new(&cpu.lower().unwrap().step, resident, budgets).unwrap();
            let machine = CpuMachine::new(CpuOptions { threads: Some(THREADS), ..CpuOptions::default() });
            let want = learned(&cpu, &resident, machine, &shared);
            for (tensor, numbers) in &want {
                let near = numbers.iter().zip(&plain[tensor]).all(|(want, got)| (want - got).abs() < 1e-4);
                assert!(near, "{tensor:?}");
            }
        }
    }
}
