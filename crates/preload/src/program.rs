//! Saves the program's name and the kernels it ran in the cache.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use tightfit_network as network;

use crate::kernel::Kernel;
use crate::log::trace;
use crate::process::Process;
use crate::settings::Tune;

/// Adds the kernels that ran to the program's layers in the cache; writes nothing if the cache is not in use.
pub fn keep(process: &Process) {
    let with_layer = |kernel: &Arc<Kernel>| {
        let layer = kernel.layer().unwrap_or_default().to_owned();
        network::Kernel { layer, problem: kernel.question.problem }
    };
    let called = process.kernels.called().0;
    // With the mode of the first one that uses the cache.
    let tune = called.iter().map(|kernel| kernel.terms.tune).find(|tune| *tune != Tune::Heuristic);
    let (Some(settings), Some(tune)) = (process.settings(), tune) else { return };
    let kernels: Vec<network::Kernel> = called.iter().map(with_layer).collect();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Some(cache) = process.chooser.cache(settings, tune) else { return };
    if let Err(error) = cache.add_to_program(&name(&arguments), &kernels) {
        trace!("could not save the layer names: {}", error.chain());
    }
    // Nobody closes the cache at exit, and yet a copy of the file alone must be complete.
    if let Err(error) = cache.settle() {
        trace!("could not merge the cache's journal into its file: {}", error.chain());
    }
}

/// A program's name from its command line: the file or module of a Python program, otherwise the executable.
fn name(arguments: &[OsString]) -> String {
    let last = |path: &OsStr| Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned();
    let [executable, rest @ ..] = arguments else { return "unknown".to_owned() };
    let own = last(executable);
    if !own.starts_with("python") {
        return own;
    }
    let file = rest.iter().find(|one| Path::new(one).extension().is_some_and(|extension| extension == "py"));
    let is_module = |pair: &&[OsString]| pair[0] == "-m" && pair[1] != "tightfit.names";
    let module = || rest.windows(2).find(is_module).map(|pair| &pair[1]);
    let script = || rest.first().filter(|one| !one.to_string_lossy().starts_with('-'));
    file.or_else(module).or_else(script).map_or(own, |found| last(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_after_its_executable_or_script() {
        for (line, expected) in [
            ("/opt/bin/server --port 1", "server"),
            ("/usr/bin/python3 -u examples/train.py --model a.py", "train.py"),
            ("python -m tightfit.names train.py", "train.py"),
            ("python -m tightfit.names -m networks.train -m 5", "networks.train"),
            ("python3.12 -m networks.train", "networks.train"),
            ("python /usr/local/bin/train --epochs 3", "train"),
            ("python", "python"),
            ("", "unknown"),
        ] {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(name(&arguments), expected, "{line}");
        }
    }
}
