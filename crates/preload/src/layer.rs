//! Names of layers, where a program's hooks tell them: the name current on a thread when a convolution is first planned is
//! its name in the report, and in the cache among the layers of the program.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::path::Path;
use std::sync::Arc;

use tightfit_core::network;

use crate::choose::cache;
use crate::kernel::{self, Kernel};
use crate::log::tell;
use crate::settings::{Tune, settings};

thread_local! {
    static CURRENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The calling thread works on the layer of this name until it says another; null ends it. The text is copied.
///
/// # Safety
/// `name` is null or points to a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitSetLayer(name: *const c_char) {
    let text = if name.is_null() {
        None
    } else {
        // SAFETY: the caller's word.
        Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    // A thread that ends has no place for it any more.
    let _ = CURRENT.try_with(|current| current.replace(text));
}

/// The layer that the calling thread works on.
pub fn current() -> Option<String> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Adds the kernels that ran to the program's layers in the cache; where nothing is looked up there, nothing is written either.
pub fn keep() {
    let Some(settings) = settings().filter(|settings| settings.tune != Tune::Heuristic) else { return };
    let named = |kernel: &Arc<Kernel>| network::Kernel { layer: kernel.name(), problem: kernel.question.problem };
    let kernels: Vec<network::Kernel> = kernel::called().0.iter().map(named).collect();
    if kernels.is_empty() {
        return;
    }
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(cache) = cache(settings)
        && let Err(error) = cache.add_to_program(&program(&arguments), &kernels)
    {
        tell!("the layers' names were not kept: {}", error.chain());
    }
}

/// A program's name by its command line: of a Python program its file or module, else the executable.
fn program(arguments: &[OsString]) -> String {
    let name = |path: &OsStr| Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned();
    let [executable, rest @ ..] = arguments else { return "unknown".to_owned() };
    let own = name(executable);
    if !own.starts_with("python") {
        return own;
    }
    let file = rest.iter().find(|one| Path::new(one).extension().is_some_and(|extension| extension == "py"));
    let is_module = |pair: &&[OsString]| pair[0] == "-m" && pair[1] != "tightfit.names";
    let module = || rest.windows(2).find(is_module).map(|pair| &pair[1]);
    let script = || rest.first().filter(|one| !one.to_string_lossy().starts_with('-'));
    file.or_else(module).or_else(script).map_or(own, |found| name(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_name_of_what_runs() {
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
            assert_eq!(program(&arguments), expected, "{line}");
        }
    }
}
