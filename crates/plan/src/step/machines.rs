//! The machines with names: their rates, and the source of each figure.

use tightfit_units::{Bytes, Error, distance};

use super::rates::{APART, AVERAGE_APART, BIAS, COUNTED, CostModel, DENSE, NamedMachine, SLOWER, SUM, Slower, figure};
use super::{Pass, cards};

/// Measured in ResNet-50: sums, normalizations and ReLU; average pooling over whole maps. In DenseNet-121: average pooling by windows that do not
/// overlap. Fully connected layers of 64 and 128 samples. In VGG-16: biases and windows that do not overlap. In GoogLeNet: dense windows.
const H200_SLOWER: Slower = &[
    ("average-pooling", Pass::BackwardData, 16.0),
    (AVERAGE_APART, Pass::BackwardData, 3.1),
    ("add", Pass::Forward, 0.82),
    ("add", Pass::BackwardData, 0.85),
    ("batch-norm", Pass::Forward, 1.44),
    ("batch-norm", Pass::BackwardData, 1.49),
    (BIAS, Pass::Forward, 1.4),
    (BIAS, Pass::BackwardFilter, 1.5),
    ("fully-connected", Pass::BackwardFilter, 2.4),
    ("max-pooling", Pass::Forward, 2.2),
    ("max-pooling", Pass::BackwardData, 4.5),
    (APART, Pass::Forward, 1.3),
    (APART, Pass::BackwardData, 3.2),
    (DENSE, Pass::Forward, 5.1),
    (DENSE, Pass::BackwardData, 5.5),
    ("relu", Pass::Forward, 0.88),
    ("relu", Pass::BackwardData, 0.84),
];

/// Measured in ResNet-50 in bf16 on an H200: this project's kernels, and convolutions that add to a gradient. Measured in VGG-16 on an H100: windows
/// that do not overlap.
const TENSOR_CORES_LAST: Slower = &[
    ("average-pooling", Pass::BackwardData, 4.5),
    ("batch-norm", Pass::Forward, 1.47),
    ("max-pooling", Pass::Forward, 1.8),
    ("max-pooling", Pass::BackwardData, 2.8),
    (APART, Pass::BackwardData, 1.5),
    (SUM, Pass::BackwardData, 1.65),
];

/// Measured: sums, normalizations and pooling of ResNet-50; gradients of fully connected layers and of windows that do not overlap in VGG-16. The
/// rest is as on an H200. ReLU is assumed to be as fast as sums.
const H100_SLOWER: Slower = &[
    ("average-pooling", Pass::BackwardData, 21.0),
    (AVERAGE_APART, Pass::BackwardData, 3.1),
    ("add", Pass::Forward, 0.92),
    ("add", Pass::BackwardData, 0.93),
    ("batch-norm", Pass::Forward, 1.45),
    ("batch-norm", Pass::BackwardData, 1.57),
    (BIAS, Pass::Forward, 1.4),
    (BIAS, Pass::BackwardFilter, 1.5),
    ("fully-connected", Pass::BackwardFilter, 1.6),
    ("max-pooling", Pass::Forward, 1.8),
    ("max-pooling", Pass::BackwardData, 3.2),
    (APART, Pass::Forward, 1.3),
    (APART, Pass::BackwardData, 2.6),
    (DENSE, Pass::Forward, 5.1),
    (DENSE, Pass::BackwardData, 5.5),
    ("relu", Pass::Forward, 0.93),
    ("relu", Pass::BackwardData, 0.93),
];

const H200_MEASURED: &str = "measured on PCIe generation 5, driver 580.159, 2026-11-21";
const H200_ASSUMED: &str = "as on an H200, which computes alike; assumed";
const H100_MEASURED: &str = "measured in a step of ResNet-50 at 256 on PCIe generation 5, 2026-11-25";
const K40_PAPER: &str = "Rhu et al. 2016, 4.2";
const ESTIMATED: &str = "estimated, not measured";

const GIB: f64 = (1u64 << 30) as f64;

/// An NVIDIA H200 on PCIe generation 5.
pub(crate) const H200: NamedMachine = NamedMachine {
    name: "h200",
    device: "H200",
    holds: Some(figure(140.0 * GIB, "reported by the driver, 2026-11-21")),
    to_host: figure(53e9, "measured on PCIe generation 5, 2026-11-21: 55 GB/s alone, 51 to 55 during kernels"),
    to_device: figure(53e9, "measured on PCIe generation 5, 2026-11-21: 55 GB/s alone, 51 to 55 during kernels"),
    both: figure(49.4e9, H200_MEASURED),
    beside_copies: figure(0.03, "measured, 2026-11-21: 1 to 8% more time for kernels during copies"),
    side_by_side: figure(
        1.15,
        "measured, 2026-11-24: GoogLeNet and Inception-v3 with branches on four streams of a CUDA graph take 6 to 10% less",
    ),
    memory: figure(0.74 * 4.8e12, "measured, 2026-11-21: the share of 4.8 TB/s that cuDNN's ReLU reaches"),
    f32: figure(51e12, H200_MEASURED),
    tf32: figure(200e12, "half of about 400 Tflop/s on tensor cores; assumed"),
    half: figure(400e12, "half of about 800 Tflop/s on tensor cores; assumed"),
    launch: figure(
        2e-6,
        "estimated from steps as one CUDA graph, which took 1 to 5 us less for each operation than with 5, 2026-11-26",
    ),
    slower: H200_SLOWER,
    slower_last: TENSOR_CORES_LAST,
    slower_source: "measured with cuDNN 9.19 in steps of GoogLeNet, ResNet-50, AlexNet and VGG-19 \
                    (scripts/gpu-train.sh, 2026-11-21) and of VGG-16 and GoogLeNet \
                    (2026-11-23); batch normalization and sums of ResNet-50 at 256 in f32 (2026-11-24); \
                    with the channels last, ResNet-50 at 256 in bf16, and average pooling of DenseNet-121 (2026-11-26); with the channels \
                    last, windows apart of VGG-16 as on an H100",
};

/// An NVIDIA H100 (SXM) on PCIe generation 5.
pub(crate) const H100: NamedMachine = NamedMachine {
    name: "h100",
    device: "H100",
    holds: Some(figure(79.0 * GIB, "reported by the driver, 2026-11-25")),
    to_host: figure(49e9, H100_MEASURED),
    to_device: figure(52e9, H100_MEASURED),
    both: figure(46e9, "49.4 of 53 GB/s, as on an H200; assumed"),
    beside_copies: figure(0.03, H200_ASSUMED),
    side_by_side: figure(1.15, H200_ASSUMED),
    memory: figure(
        0.84 * 3.35e12,
        "measured, 2026-11-25: the share of 3.35 TB/s that cuDNN's gradient of ReLU reaches",
    ),
    f32: figure(51e12, H200_ASSUMED),
    tf32: figure(200e12, H200_ASSUMED),
    half: figure(400e12, H200_ASSUMED),
    launch: figure(
        2e-6,
        "estimated from steps as one CUDA graph, which took 1 to 5 us less for each operation than with 5, 2026-11-26",
    ),
    slower: H100_SLOWER,
    slower_last: TENSOR_CORES_LAST,
    slower_source: "measured with cuDNN 9.19 in steps of ResNet-50 at 256 in f32 (2026-11-25) and of VGG-16 at 128 in f32 and 256 in \
                    bf16 (2026-11-26; traces of `tightfit train`); the others as on an H200",
};

/// The NVIDIA K40 of the vDNN paper.
pub(crate) const K40: NamedMachine = NamedMachine {
    name: "k40",
    device: "K40",
    holds: None,
    to_host: figure(12e9, "75% of 16 GB/s over PCIe 3, Rhu et al. 2016, 4.2"),
    to_device: figure(12e9, "75% of 16 GB/s over PCIe 3, Rhu et al. 2016, 4.2"),
    both: figure(12e9, "as in one direction; assumed"),
    beside_copies: figure(0.0, "assumed"),
    side_by_side: figure(1.0, "assumed"),
    memory: figure(0.8 * 288e9, "80% of 288 GB/s, Rhu et al. 2016, 4.2"),
    f32: figure(3e12, "60% of 5 Tflop/s, Rhu et al. 2016, 4.2"),
    tf32: figure(3e12, "as in 32 bits: it has no tensor cores"),
    half: figure(3e12, K40_PAPER),
    launch: figure(1e-5, ESTIMATED),
    slower: SLOWER,
    slower_last: &[],
    slower_source: COUNTED,
};

/// A CPU with a few cores and both arenas in its own memory.
pub(crate) const CPU: NamedMachine = NamedMachine {
    name: "cpu",
    device: "",
    holds: None,
    to_host: figure(8e9, ESTIMATED),
    to_device: figure(8e9, ESTIMATED),
    both: figure(4e9, "both directions share the memory; estimated"),
    beside_copies: figure(0.0, ESTIMATED),
    side_by_side: figure(1.0, "a layer uses all cores"),
    memory: figure(8e9, ESTIMATED),
    f32: figure(1e11, ESTIMATED),
    tf32: figure(1e11, ESTIMATED),
    half: figure(1e10, ESTIMATED),
    launch: figure(2e-6, ESTIMATED),
    slower: SLOWER,
    slower_last: &[],
    slower_source: COUNTED,
};

/// All known machines.
pub const MACHINES: [NamedMachine; 13] = [
    H200,
    H100,
    cards::RTX_3090,
    cards::RTX_4090,
    cards::RTX_5090,
    cards::A6000,
    cards::A100,
    cards::L4,
    cards::L40S,
    cards::T4,
    cards::V100,
    K40,
    CPU,
];

/// The makers' words before the name of a card.
const MAKERS: [&str; 5] = ["nvidia", "geforce", "tesla", "quadro", "rtx"];
/// The beginnings of words after it.
const FORMS: [&str; 4] = ["sxm", "pcie", "nvl", "hbm"];
/// The sizes of memory that these cards are sold with, in GB.
const SOLD: [u64; 8] = [12, 16, 24, 32, 40, 48, 80, 141];

/// The words of a name as cards are sold, such as `RTX 4090`, `rtx4090`, `A100-80GB` and `NVIDIA H100 80GB HBM3`.
fn sold(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric());
    words
        .map(|word| MAKERS.iter().fold(word, |rest, maker| rest.trim_start_matches(maker)).to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Card memory that a program's driver and libraries take in addition to a plan.
const DRIVER_MEMORY: Bytes = Bytes::gib(1);

impl NamedMachine {
    /// The machine of this name.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] with all names for an unknown name.
    pub fn named(name: &str) -> Result<&'static NamedMachine, Error> {
        let words = sold(name);
        MACHINES.iter().find(|machine| machine.is_sold_as(&words)).ok_or_else(|| {
            let mut known: Vec<&NamedMachine> = MACHINES.iter().collect();
            known.sort_by_key(|machine| distance(machine.name, &words.concat()));
            let of = |machine: &NamedMachine| match machine.holds {
                Some(_) => format!("{} of {} GB", machine.name, machine.gigabytes()),
                None => machine.name.to_owned(),
            };
            Error::unknown_word("cards; the nearest come first", name, known.into_iter().map(of))
        })
    }

    /// Whether the words of a name are this machine's: its own name, then its form and its memory.
    fn is_sold_as(&self, words: &[String]) -> bool {
        let [name, rest @ ..] = words else { return false };
        let fits = |word: &String| match word.trim_end_matches('b').strip_suffix('g') {
            Some(number) if self.holds.is_some() => number == self.gigabytes().to_string(),
            _ => FORMS.iter().any(|form| word.starts_with(form)),
        };
        name == self.name && rest.iter().all(fits)
    }

    /// The memory that a card is sold with, in GB: the driver reports less where error correction takes a part.
    fn gigabytes(&self) -> u64 {
        let reported = self.holds.map_or(0.0, |holds| holds.value / (1u64 << 30) as f64);
        SOLD.into_iter().find(|size| *size as f64 > 0.999 * reported).unwrap_or_default()
    }

    /// The machine of a device of this name, such as "NVIDIA H200".
    pub fn of_device(device: &str) -> Option<&'static NamedMachine> {
        // Laptop cards have other rates. Whole words are compared, so that an L40 is not taken for an L4.
        let words = |text: &str| text.split([' ', '-']).map(str::to_owned).collect::<Vec<_>>();
        let has = words(device);
        let is_it = |name: &str| !name.is_empty() && has.windows(words(name).len()).any(|part| part == words(name));
        MACHINES.iter().find(|machine| is_it(machine.device)).filter(|_| !has.iter().any(|word| word == "Laptop"))
    }

    /// The memory that a plan may use.
    pub fn room(&self) -> Option<Bytes> {
        self.holds.map(|holds| Bytes(holds.value as u64).saturating_sub(DRIVER_MEMORY))
    }
}

impl CostModel {
    /// An NVIDIA H200 on PCIe generation 5; [`MACHINES`](crate::MACHINES) has the source of each figure.
    pub fn h200() -> CostModel {
        H200.costs()
    }

    /// The NVIDIA K40 of the vDNN paper; see [`MACHINES`](crate::MACHINES).
    pub fn k40() -> CostModel {
        K40.costs()
    }

    /// A CPU with a few cores and both arenas in its own memory; see [`MACHINES`](crate::MACHINES).
    pub fn cpu() -> CostModel {
        CPU.costs()
    }

    /// Looks up the costs of one of the [`MACHINES`](crate::MACHINES) by name.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] with all names for any other name.
    pub fn named(name: &str) -> Result<CostModel, Error> {
        NamedMachine::named(name).map(NamedMachine::costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_of_use_and_has_a_source() {
        for machine in &MACHINES {
            let NamedMachine { to_host, to_device, both, memory, f32, tf32, half, launch, .. } = machine;
            let NamedMachine { beside_copies, side_by_side, .. } = machine;
            for figure in [to_host, to_device, both, memory, f32, tf32, half, launch] {
                assert!(figure.value > 0.0 && !figure.source.is_empty(), "{}: {figure:?}", machine.name);
            }
            assert!((0.0..1.0).contains(&beside_copies.value) && !beside_copies.source.is_empty(), "{}", machine.name);
            assert!((1.0..2.0).contains(&side_by_side.value) && !side_by_side.source.is_empty(), "{}", machine.name);
            assert!(both.value <= to_host.value.max(to_device.value), "{}", machine.name);
            assert_eq!(NamedMachine::named(machine.name).unwrap(), machine);
        }
    }

    #[test]
    fn a_wrong_name_lists_all() {
        let message = NamedMachine::named("h2000").unwrap_err().to_string();
        assert!(
            message.contains("`h2000` is not one of the cards; the nearest come first: h200 of 141 GB, "),
            "{message}"
        );
        MACHINES.iter().for_each(|machine| assert!(message.contains(machine.name), "{message}"));
        assert_eq!(NamedMachine::of_device("NVIDIA H200 NVL").map(|machine| machine.name), Some("h200"));
        assert_eq!(NamedMachine::of_device("NVIDIA H100 80GB HBM3").map(|machine| machine.name), Some("h100"));
        for (device, name) in [
            ("NVIDIA GeForce RTX 4090", Some("4090")),
            ("NVIDIA A100-SXM4-80GB", Some("a100")),
            ("NVIDIA L4", Some("l4")),
            ("NVIDIA L40S", Some("l40s")),
            ("NVIDIA L40", None),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("some CPU", None),
        ] {
            assert_eq!(NamedMachine::of_device(device).map(|machine| machine.name), name, "{device}");
        }
        for (name, mib) in [("4090", 24_564), ("l4", 23_034), ("l40s", 46_068), ("t4", 15_360)] {
            assert_eq!(NamedMachine::named(name).unwrap().room(), Some(Bytes::mib(mib - 1024)), "{name}");
        }
        assert_eq!(NamedMachine::named("k40").unwrap().room(), None);
        for (written, name) in [
            ("RTX 4090", Some("4090")),
            ("rtx4090", Some("4090")),
            ("NVIDIA GeForce RTX 4090", Some("4090")),
            ("rtx-a6000", Some("a6000")),
            ("a100-80gb", Some("a100")),
            ("A100 SXM4 80G", Some("a100")),
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("H200-141GB", Some("h200")),
            ("L4 24GB", Some("l4")),
            ("Tesla T4 16GB", Some("t4")),
            ("a100-40gb", None),
            ("4090 Ti", None),
            ("4090 laptop", None),
            ("l40", None),
            ("", None),
        ] {
            assert_eq!(NamedMachine::named(written).ok().map(|machine| machine.name), name, "{written}");
        }
    }
}
