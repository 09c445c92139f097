//! Files of plans: each is refused, or trains to the losses of the good plan.

use serde_json::Value;

use super::bench::{POLICIES, TRAIN, losses};
use super::case::Case;
use super::mutate;

/// How far losses may be apart, as a share: another algorithm rounds differently, a wrong plan computes something else.
const ROUNDING: f64 = 1e-3;

pub fn attack(case: &mut Case) {
    let name = if case.random.one_in(8) { packed(case) } else { damaged(case) };
    let ending = case.run(&format!("{TRAIN} --plan {name}"));
    if !ending.succeeded() {
        return;
    }
    let (found, good) = (losses(&ending.stdout).unwrap_or_default(), &case.bench.losses);
    let is_near = |(one, other): (&f64, &f64)| (one - other).abs() <= ROUNDING * other.abs();
    let same = found.len() == good.len() && found.iter().zip(good).all(is_near);
    let what = format!("{name} was accepted and gave the losses {found:?}, the good plan {good:?}");
    case.expect(same, || what);
}

/// A packed plan with damaged bytes.
fn packed(case: &mut Case) -> &'static str {
    let mut bytes = case.bench.bytes("plan.json.gz");
    mutate::bytes(&mut bytes, &mut case.random);
    case.write("m.json.gz", bytes);
    "m.json.gz"
}

fn damaged(case: &mut Case) -> &'static str {
    let policy = *case.random.pick(&POLICIES);
    let mut text = case.bench.bytes(&format!("plan-{policy}.json"));
    if case.random.one_in(6) {
        mutate::text(&mut text, &mut case.random);
    } else {
        let mut document: Value = serde_json::from_slice(&text).unwrap();
        match document.pointer_mut("/plan/schedule/steps") {
            // Neighbors may often run in either order, and then the plan is accepted.
            Some(Value::Array(steps)) if case.random.one_in(3) => {
                let at = case.random.below(steps.len() - 1);
                steps.swap(at, at + 1);
            }
            _ => {
                let parts = ["", "/plan", "/plan/schedule", "/plan/schedule/blocks", "/plan/schedule/steps"];
                let part = *case.random.pick(&parts);
                mutate::json(document.pointer_mut(part).unwrap(), &mut case.random);
            }
        }
        text = document.to_string().into_bytes();
    }
    case.write("m.json", text);
    "m.json"
}
