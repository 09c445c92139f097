//! Corrects a library's notes on an algorithm's arithmetic.
//!
//! A missing note puts an algorithm in the wrong numerical class. The corrections apply to old measurements as well, so
//! recordings are read with them.

use crate::{Algorithm, Device, Notes, Operation};

/// Notes to add to a library's report about one algorithm.
struct Correction {
    /// Name of the library, as a [`Device`] has it, and the first and last versions to which this applies.
    library: (&'static str, [u32; 2], [u32; 2]),
    operation: Operation,
    /// The algorithm's name without knobs and types.
    algorithm: &'static str,
    notes: Notes,
}

const CORRECTIONS: &[Correction] = &[
    // Engine 17 states no numerical note. On an H200 its workspace equals the workspace of the legacy non-fused Winograd algorithm to the byte in 863
    // of 866 recorded (problem, size) pairs (`profiles/recorded/h200-2026-11-21.jsonl.gz`). For 5x5 filters both have an error of 4e-3 of the largest
    // output (`docs/results.md`, Errors).
    Correction {
        library: ("cudnn", [9, 19], [9, 19]),
        operation: Operation::BackwardFilter,
        algorithm: "engine17",
        notes: Notes::WINOGRAD,
    },
];

/// A library's notes on an algorithm's arithmetic, plus known corrections.
///
/// ```
/// use tightfit_conv::{Algorithm, Device, Notes, Operation};
/// use tightfit_conv::backend::corrected;
/// let library = "cudnn 9.19.0 / driver 580.159 / cuda 13.0".to_owned();
/// let device = Device { backend: "cuda".to_owned(), name: "NVIDIA H200".to_owned(), library, threads: 0 };
/// let engine = Algorithm::new("engine17:k25=0");
/// assert_eq!(corrected(&device, Operation::BackwardFilter, &engine, Notes::NONE), Notes::WINOGRAD);
/// assert_eq!(corrected(&device, Operation::Forward, &engine, Notes::NONE), Notes::NONE);
/// ```
pub fn corrected(device: &Device, operation: Operation, algorithm: &Algorithm, notes: Notes) -> Notes {
    let name = algorithm.name();
    let name = &name[..name.find([':', '@']).unwrap_or(name.len())];
    let applies = |correction: &&Correction| {
        let (library, first, last) = correction.library;
        let known = version(&device.library, library).is_some_and(|version| (first..=last).contains(&version));
        known && correction.operation == operation && correction.algorithm == name
    };
    CORRECTIONS.iter().filter(applies).fold(notes, |notes, correction| notes.with(correction.notes))
}

/// Major and minor version of a library in a device's list, as in `cudnn 9.19.0 / cuda 13.0`.
fn version(libraries: &str, name: &str) -> Option<[u32; 2]> {
    let versions = libraries.split('/').filter_map(|library| library.trim().strip_prefix(name)?.strip_prefix(' '));
    let mut numbers = versions.take(1).flat_map(|version| version.split('.')).map(|number| number.trim().parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_among_others() {
        assert_eq!(version("cudnn 9.19.0 / driver 580.159 / cuda 13.0", "cudnn"), Some([9, 19]));
        assert_eq!(version("driver 580.159 / cudnn 9.2", "cudnn"), Some([9, 2]));
        assert_eq!(version("driver 580.159 / cudnn 9.2", "driver"), Some([580, 159]));
        assert_eq!(version("cudnn-frontend 1.2", "cudnn"), None);
        assert_eq!(version("cudnn", "cudnn"), None);
    }

    #[test]
    fn notes_are_added_to_the_algorithm_in_every_form_and_to_no_other() {
        let notes = |library: &str, operation, name: &str, said| {
            let library = library.to_owned();
            let device = Device { backend: "replay".to_owned(), name: String::new(), library, threads: 0 };
            corrected(&device, operation, &Algorithm::new(name), said)
        };
        let filter = Operation::BackwardFilter;
        for name in ["engine17", "engine17:k25=1", "engine17@f16-f32", "engine17:k25=1@f16-f32"] {
            assert_eq!(notes("cudnn 9.19.1", filter, name, Notes::NONE), Notes::WINOGRAD, "{name}");
        }
        let both = Notes::TENSOR_CORE.with(Notes::WINOGRAD);
        assert_eq!(notes("cudnn 9.19.0", filter, "engine17", Notes::TENSOR_CORE), both);
        for name in ["engine1", "engine171", "engine170:k25=0", "legacy:engine17"] {
            assert_eq!(notes("cudnn 9.19.0", filter, name, Notes::NONE), Notes::NONE, "{name}");
        }
        assert_eq!(notes("cudnn 9.19.0", Operation::BackwardData, "engine17", Notes::NONE), Notes::NONE);
        assert_eq!(notes("cudnn 9.20.0", filter, "engine17", Notes::NONE), Notes::NONE);
        assert_eq!(notes("cpu", filter, "engine17", Notes::NONE), Notes::NONE);
    }
}
