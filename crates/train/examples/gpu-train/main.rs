//! Trains networks on a GPU under every policy and prints the time of a step, the used part of the arena, and the memory
//! outside it. `scripts/gpu-train.sh` calls it.
//!
//! ```text
//! gpu-train profile CACHE RECORDING NETWORK:BATCH ..                  measures the convolutions, for the calls below
//! gpu-train time CACHE RESULTS BUDGET STEPS SECONDS NETWORK:BATCH ..  a line of JSON for each policy, under the budget and
//!                                                                     under the whole card; begins none after SECONDS
//! gpu-train copies CACHE RESULTS STEPS NETWORK:BATCH ..               kernels alone and while copies run, as JSON
//! ```

mod cases;
mod copies;
mod time;

use std::path::Path;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["profile", cache, recording, cases @ ..] => cases::profile(Path::new(cache), recording, cases),
        ["time", cache, results, budget, steps, seconds, cases @ ..] => {
            let limit = Duration::from_secs(seconds.parse()?);
            time::time(Path::new(cache), Path::new(results), budget.parse()?, steps.parse()?, limit, cases)
        }
        ["copies", cache, results, steps, cases @ ..] => {
            copies::copies(Path::new(cache), Path::new(results), steps.parse()?, cases)
        }
        _ => Err("profile CACHE RECORDING CASES, time CACHE RESULTS BUDGET STEPS SECONDS CASES, or copies \
                  CACHE RESULTS STEPS CASES"
            .into()),
    }
}
