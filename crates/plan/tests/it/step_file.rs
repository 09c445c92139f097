//! Step files: reading, writing, what is refused, and plans of recorded steps.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tightfit_plan::step::{Access, Again, Cost, Rerun, Residence, StepFile};
use tightfit_plan::{Budgets, CostModel, Options, Policy, Stop, Treatment, check, plan, plan_until, sweep};
use tightfit_units::{Bytes, Error, Nanos};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/steps").join(name)
}

const FILES: [&str; 4] = ["residual-4.json", "unet-3.json", "residual-12.json.gz", "eager-6.json"];

#[test]
fn steps_round_trip() {
    for name in FILES {
        let file = StepFile::read(&path(name)).unwrap();
        let again = StepFile::from_json(&file.to_json().unwrap()).unwrap();
        assert!(again == file, "{name}");
    }
}

#[test]
fn a_file_says_all_that_a_step_has() {
    let StepFile { step, machine } = StepFile::read(&path("residual-4.json")).unwrap();
    let find = |name: &str| step.operations.iter().find(|operation| operation.name == name).unwrap();
    assert!(matches!(&find("convolution").cost, Cost::Listed(choices) if choices.len() == 2));
    let norm = find("batch_norm");
    assert!(matches!(norm.again, Again::Taking(time) if time.0 == 4200));
    assert_eq!(norm.uses.iter().filter(|used| used.rerun == Rerun::ReadOnly).count(), 2);
    assert_eq!(find("dropout").again, Again::Never);
    assert_eq!(find("relu_").uses.len(), 1);
    assert_eq!(find("relu_").uses[0].access, Access::Add);
    // A read of the view is a read of the tensor whose bytes it shares.
    let alias = step.tensors.iter().position(|tensor| tensor.alias.is_some()).unwrap();
    assert!(step.operations.iter().all(|operation| operation.uses.iter().all(|used| used.tensor.0 != alias)));
    assert_eq!(machine.unwrap().costs().both_rate, 4.5e9);
}

/// The message of the error after a change of a valid file.
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let text = std::fs::read_to_string(path("residual-4.json")).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    change(&mut document);
    StepFile::from_json(&document.to_string()).unwrap_err().chain()
}

#[test]
fn malformed_files_are_refused_with_place_and_value() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 17] = [
        ("version 2, but this program reads version 1", |file| file["tightfit_step"] = 2.into()),
        ("batch is 0", |file| file["batch"] = 0.into()),
        ("missing field `tensors`", |file| _ = file.as_object_mut().unwrap().remove("tensors")),
        ("unknown variant `map`", |file| file["tensors"][0]["kind"] = "map".into()),
        ("invalid value: integer `-1`", |file| file["tensors"][0]["bytes"] = (-1).into()),
        ("tensors[0].bytes is 18446744073709551615", |file| file["tensors"][0]["bytes"] = u64::MAX.into()),
        ("tensors[0].alias is 999", |file| file["tensors"][0]["alias"] = 999.into()),
        ("tensors[1].alias leads back to itself", |file| file["tensors"][1]["alias"] = 1.into()),
        ("operations[1].reads[0] is 999", |file| file["operations"][1]["reads"][0] = 999.into()),
        ("operations[1].group is 99", |file| file["operations"][1]["group"] = 99.into()),
        ("operations[0].time_us is -1", |file| file["operations"][0]["time_us"] = (-1.0).into()),
        ("operations[0].time_us is 1e300", |file| file["operations"][0]["time_us"] = 1e300.into()),
        ("operations[1] has both time_us and choices", |file| file["operations"][1]["time_us"] = 1.0.into()),
        ("operations[0] has neither time_us nor choices", |file| {
            _ = file["operations"][0].as_object_mut().unwrap().remove("time_us");
        }),
        ("operations[0].rerun.read_only has 3, which the operation does not use", |file| {
            file["operations"][0]["rerun"] = serde_json::json!({"read_only": [3]});
        }),
        ("reads input before anything writes it", |file| _ = file["operations"].as_array_mut().unwrap().remove(0)),
        ("machine.link_share is 2", |file| file["machine"]["link_share"] = 2.0.into()),
    ];
    for (part, change) in cases {
        let message = refused(change);
        assert!(message.contains(part), "{part}: {message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.json.gz");
    let bytes = std::fs::read(path("residual-12.json.gz")).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    assert!(StepFile::read(&cut).unwrap_err().chain().contains("cut.json.gz"));
}

/// Any number changed to any other leaves a file valid or refused; nothing panics.
#[test]
fn wrong_numbers_never_panic() {
    let text = std::fs::read_to_string(path("unet-3.json")).unwrap();
    let starts: Vec<usize> = (1..text.len())
        .filter(|&at| text.as_bytes()[at].is_ascii_digit() && b":[,".contains(&text.as_bytes()[at - 1]))
        .collect();
    let mut refused = 0;
    for (count, &start) in starts.iter().enumerate() {
        let digits = text[start..].chars().take_while(char::is_ascii_digit).count();
        let other = ["0", "1", "255", "-7", "1e19", "18446744073709551615"][count % 6];
        let wrong = format!("{}{other}{}", &text[..start], &text[start + digits..]);
        match StepFile::from_json(&wrong) {
            Ok(file) if count % 40 == 0 => {
                let costs = file.machine.unwrap().costs();
                _ = plan(&file.step, &costs, &Options { policy: Policy::Overlap, ..Options::default() });
            }
            Ok(_) => {}
            Err(_) => refused += 1,
        }
    }
    assert!(refused > starts.len() / 8, "only {refused} of {} refused", starts.len());
}

#[test]
fn recorded_steps_are_planned_under_every_budget() {
    for name in FILES {
        let StepFile { step, machine } = StepFile::read(&path(name)).unwrap();
        let costs = machine.unwrap().costs();
        let free = plan(&step, &costs, &Options { policy: Policy::Optimal, ..Options::default() }).unwrap();
        assert_eq!((free.offloaded, free.recomputed.0), (Bytes::ZERO, 0), "{name}: what fits stays");
        let (mut planned, mut rebuilt) = (0, 0);
        for share in [90, 75, 60, 45, 30] {
            let budget = Bytes(free.most_live.0 / 100 * share);
            let of = |policy| plan(&step, &costs, &Options { policy, budget, ..Options::default() });
            match (of(Policy::Optimal), of(Policy::Overlap)) {
                (Ok(plan), overlap) => {
                    assert!(
                        check(&step, &plan.schedule, Budgets { device: budget, host: Bytes::UNLIMITED }).is_empty()
                    );
                    assert!(overlap.is_err() || overlap.unwrap().step_time >= plan.step_time, "{name} at {share}%");
                    assert!(plan.bound.unwrap() <= plan.step_time, "{name} at {share}%");
                    planned += 1;
                    let treated = |treatment| move |of: &&tightfit_plan::TensorDecision| of.decision == treatment;
                    let decisions = plan.tensor_decisions();
                    let runs =
                        decisions.iter().flat_map(|of| &of.rebuilt).map(|runs| runs.operations.len()).sum::<usize>();
                    assert_eq!(plan.recomputed.0 > 0, runs > 0, "{name} at {share}%");
                    assert_eq!(decisions.iter().any(|of| of.offload_after.is_some()), plan.offloaded > Bytes::ZERO);
                    rebuilt += decisions.iter().filter(treated(Treatment::Recompute)).count();
                    let written: Value = serde_json::from_str(&plan.to_step_json().unwrap()).unwrap();
                    assert_eq!(written["tensors"].as_array().unwrap().len(), decisions.len());
                }
                (Err(Error::OverBudget { needed, .. }), _) => assert!(needed > budget),
                (Err(error), _) => panic!("{name} at {share}%: {error}"),
            }
        }
        assert!(planned >= 2 && rebuilt > 0, "{name}: {planned} planned, {rebuilt} rebuilt");
    }
}

#[test]
fn a_planner_that_is_stopped_before_it_begins_still_gives_a_plan() {
    let StepFile { step, machine } = StepFile::read(&path("residual-12.json.gz")).unwrap();
    let costs = machine.unwrap().costs();
    let flag = AtomicBool::new(true);
    for policy in Policy::ALL {
        let options = Options { policy, ..Options::default() };
        let free = plan(&step, &costs, &options).unwrap();
        let budget = free.min_feasible.max(Bytes((free.min_feasible.0 + 3 * free.most_live.0) / 4));
        let options = Options { budget, ..options };
        // Every returned plan has passed the checker.
        let stopped = plan_until(&step, &costs, &options, Stop::WithBest(&flag));
        assert!(stopped.is_ok_and(|plan| plan.peak <= budget), "{policy}");
        let none = plan_until(&step, &costs, &options, Stop::WithNothing(&flag));
        assert!(matches!(none, Err(Error::Interrupted)), "{policy}: {none:?}");
        let swept = sweep(&step, &costs, &options, &[budget], Stop::WithNothing(&flag));
        assert!(matches!(swept, Err(Error::Interrupted)), "{policy}");
    }
}

#[test]
fn a_budget_that_was_not_searched_is_not_called_too_small() {
    let StepFile { step, machine } = StepFile::read(&path("residual-12.json.gz")).unwrap();
    let costs = machine.unwrap().costs();
    let options = Options { policy: Policy::Optimal, budget: Bytes(1), ..Options::default() };
    let flag = AtomicBool::new(true);
    let stopped = plan_until(&step, &costs, &options, Stop::WithBest(&flag));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    assert!(matches!(plan(&step, &costs, &options), Err(Error::OverBudget { .. })));
}

#[test]
fn no_time_to_search_still_gives_a_plan() {
    let StepFile { step, machine } = StepFile::read(&path("residual-12.json.gz")).unwrap();
    let costs = machine.unwrap().costs();
    let options = Options { policy: Policy::Optimal, plan_time: Some(Nanos(0)), ..Options::default() };
    let free = plan(&step, &costs, &options).unwrap();
    let budget = Bytes((free.min_feasible.0 + free.most_live.0) / 2);
    let hasty = plan(&step, &costs, &Options { budget, ..options }).unwrap();
    let patient = plan(&step, &costs, &Options { budget, plan_time: None, ..options }).unwrap();
    assert!(hasty.peak <= budget && patient.step_time <= hasty.step_time);
    assert!(
        plan(&step, &costs, &Options { budget, plan_time: None, ..options }).unwrap() == patient,
        "the same each time"
    );
}

#[test]
fn reruns_through_temporary_tensors_are_all_listed() {
    let StepFile { step, machine } = StepFile::read(&path("eager-6.json")).unwrap();
    let costs = machine.unwrap().costs();
    let free = plan(&step, &costs, &Options { policy: Policy::Optimal, ..Options::default() }).unwrap();
    let mut through = 0;
    for share in [75, 60, 52] {
        let budget = Bytes(free.most_live.0 / 100 * share);
        let options = Options { policy: Policy::Optimal, budget, host_budget: Bytes(0), ..Options::default() };
        // Without a host, little may be too little.
        let Ok(planned) = plan(&step, &costs, &options) else { continue };
        assert!(check(&step, &planned.schedule, Budgets { device: budget, host: Bytes(0) }).is_empty());
        for runs in planned.tensor_decisions().iter().flat_map(|of| &of.rebuilt) {
            let mut made = Vec::new();
            for used in runs.operations.iter().flat_map(|run| &step.operations[*run].uses) {
                let is_temporary = step.tensor(used.tensor).residence == Residence::Temporary;
                match used.access {
                    Access::Read => assert!(!is_temporary || made.contains(&used.tensor), "{share}%: {runs:?}"),
                    Access::Write | Access::Add => made.push(used.tensor),
                }
                through += usize::from(is_temporary && used.access == Access::Read);
            }
        }
    }
    assert!(through > 0, "nothing is rebuilt through a temporary tensor");
}

#[test]
fn a_machine_may_have_a_name_and_figures_of_its_own() {
    let text = std::fs::read_to_string(path("residual-4.json")).unwrap();
    let with = |machine: serde_json::Value| {
        let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
        file["machine"] = machine;
        StepFile::from_json(&file.to_string())
    };
    let named = with(serde_json::json!({"name": "k40", "host_bytes": 4096})).unwrap();
    let machine = named.machine.unwrap();
    assert_eq!((machine.costs(), machine.host_bytes), (CostModel::k40(), Some(Bytes(4096))));
    assert_eq!(StepFile::from_json(&named.to_json().unwrap()).unwrap().machine, named.machine);
    let faster =
        with(serde_json::json!({"name": "h200", "to_host_bytes_per_s": 60e9})).unwrap().machine.unwrap().costs();
    assert_eq!((faster.offload_rate, faster.prefetch_rate), (60e9, CostModel::h200().prefetch_rate));
    for (machine, word) in [
        (serde_json::json!({"name": "k41"}), "k40"),
        (serde_json::json!({"to_host_bytes_per_s": 1e9}), "to_device_bytes_per_s"),
    ] {
        let message = with(machine).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}
