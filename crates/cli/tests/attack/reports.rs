//! Reports of programs that ran under `run`: shown in every format.

use serde_json::{Value, json};

use super::case::Case;
use super::mutate;

pub fn attack(case: &mut Case) {
    let mut document = good();
    let mut text = if case.random.one_in(2) {
        let parts = ["", "/kernels", "/kernels/0", "/kernels/0/ours", "/kernels/0/ours/configuration", "/totals"];
        let part = *case.random.pick(&parts);
        mutate::json(document.pointer_mut(part).unwrap(), &mut case.random);
        document.to_string().into_bytes()
    } else {
        document.to_string().into_bytes()
    };
    if case.random.one_in(3) {
        mutate::text(&mut text, &mut case.random);
    } else if case.random.one_in(4) {
        mutate::bytes(&mut text, &mut case.random);
    }
    case.write("m.json", text);
    let format = *case.random.pick(&["table", "json", "csv"]);
    case.run(&format!("report m.json --format {format} --plot m.svg --html m.html"));
}

fn good() -> Value {
    let part =
        json!({"micro_batch": 128, "algorithm": "engine17:k25=0", "time_us": 400.5, "workspace_bytes": 48 << 20});
    json!({
        "version": "0.1.0",
        "pid": 17,
        "cudnn": "/lib/libcudnn.so.9",
        "device": "NVIDIA H200 (cudnn 9.19.0)",
        "workspace_limit": "auto",
        "kernels": [{
            "name": "conv1",
            "problem": "backward-filter n256 c64 h27 w27 k192 r5 s5 pad2 f32",
            "operation": "backward-filter",
            "device": 0,
            "calls": 400,
            "micro_batches": 2,
            "framework": {"algorithm": "engine3:k11=2", "time_us": 1600.25, "workspace_bytes": 96 << 20},
            "ours": {"configuration": [part, part], "time_us": 801.0, "workspace_bytes": 48 << 20},
            "decision": "divided",
        }],
        "passed_through": [{"reason": "fused graph", "function": "cudnnBackendExecute", "calls": 7}],
        "totals": {
            "workspace_peak_avoided_bytes": 0,
            "time_gained_us": 9500.0,
            "tuning_us": 3_200_000.0,
            "tuning_measurements": 143,
            "cache_hits": 2,
            "less_accurate": 1,
            "planned_only": 3,
        },
    })
}
