//! Common cards with their makers' figures: dense peaks, of which programs reach a share.
//!
//! | card | source of its rates |
//! |---|---|
//! | RTX 3090, RTX A6000 | *NVIDIA Ampere GA102 GPU Architecture*, V2.0, appendices A and C |
//! | RTX 4090 | *NVIDIA Ada GPU Architecture*, appendix A |
//! | RTX 5090 | *NVIDIA RTX Blackwell GPU Architecture*, appendix A |
//! | A100 SXM, 80 GB | data sheet *NVIDIA A100 Tensor Core GPU* (1758950): 2,039 GB/s, 19.5, 156, 312 |
//! | L4 | data sheet *NVIDIA L4 Tensor Core GPU*: 300 GB/s, 30.3, and half of 120 and 242, which are with sparsity |
//! | L40S | data sheet *NVIDIA L40S*: 864 GB/s, 91.6, 183, 362.05 |
//! | T4 | data sheet *NVIDIA T4 Tensor Core GPU*: 320 GB/s, 8.1, 65 |
//! | V100 SXM2 | data sheet *NVIDIA V100 Tensor Core GPU*: 900 GB/s, 15.7, 125 |
//!
//! Compared on 2026-11-28 with public copies of the tables (A100, L4, L40S, RTX 4090), and for the others with public lists of rates by cores and
//! clocks. All agree to the last digit here. The memory is the figure that `nvidia-smi` shows in public lists. It is less than the data sheet's for
//! cards whose error correction takes a sixteenth (L4, L40S, T4).

use super::rates::{COUNTED, NamedMachine, SLOWER, figure};

/// The share of the published memory rate that layers reach: 0.74 on an H200, 0.84 on an H100.
const OF_MEMORY: f64 = 0.75;
/// The share of the published arithmetic without tensor cores that convolutions reach: 0.76 on an H200.
const OF_WIDE: f64 = 0.75;
/// The share of the published dense rate of tensor cores: about 0.4 on an H200.
const OF_TENSOR_CORES: f64 = 0.4;
/// The share of a link's raw rate that copies reach: 0.84 on an H200; and of that in both directions at once: 0.93.
const OF_LINK: f64 = 0.84;
const OF_BOTH: f64 = 0.93;

const OF_SHEET: &str = "84% of the link's raw rate, as measured on an H200; the link by the card's data sheet";
const REPORTED: &str = "reported by nvidia-smi";
const ASSUMED: &str = "as on an H200; assumed";

/// The memory that `nvidia-smi` reports, in MiB. From the data sheet: GB/s; dense Tflop/s in 32 bits, on tensor cores from 32 bits, and from 16 bits
/// with 32-bit sums; and the link in GB/s.
struct Sheet {
    mib: f64,
    memory: f64,
    f32: f64,
    tf32: f64,
    half: f64,
    link: f64,
    source: &'static str,
}

/// PCIe with 16 lanes of generation 3, 4 and 5, GB/s.
const PCIE_3: f64 = 15.75;
const PCIE_4: f64 = 31.5;
const PCIE_5: f64 = 63.0;

const fn card(name: &'static str, device: &'static str, sheet: Sheet) -> NamedMachine {
    let Sheet { mib, memory, f32, tf32, half, link, source } = sheet;
    NamedMachine {
        name,
        device,
        holds: Some(figure(mib * (1u64 << 20) as f64, REPORTED)),
        to_host: figure(OF_LINK * link * 1e9, OF_SHEET),
        to_device: figure(OF_LINK * link * 1e9, OF_SHEET),
        both: figure(OF_BOTH * OF_LINK * link * 1e9, "93% of that in one direction, as on an H200; assumed"),
        beside_copies: figure(0.03, ASSUMED),
        side_by_side: figure(1.0, "not measured"),
        memory: figure(OF_MEMORY * memory * 1e9, source),
        f32: figure(OF_WIDE * f32 * 1e12, source),
        tf32: figure(share(tf32, f32) * 1e12, source),
        half: figure(share(half, f32) * 1e12, source),
        launch: figure(2e-6, ASSUMED),
        slower: SLOWER,
        slower_last: &[],
        slower_source: COUNTED,
    }
}

/// The rate of tensor cores, or of other cores if these are faster.
const fn share(tensor_cores: f64, wide: f64) -> f64 {
    let (one, other) = (OF_TENSOR_CORES * tensor_cores, OF_WIDE * wide);
    if one > other { one } else { other }
}

const AMPERE: &str =
    "NVIDIA Ampere GA102 GPU Architecture, 2.0, appendices A and C: 75% of memory and 32 bits, 40% of tensor cores";
const ADA: &str = "NVIDIA Ada GPU Architecture, appendix A: 75% of memory and 32 bits, 40% of tensor cores";
const BLACKWELL: &str =
    "NVIDIA RTX Blackwell GPU Architecture, appendix A: 75% of memory and 32 bits, 40% of tensor cores";
const A100_SHEET: &str = "NVIDIA A100 80GB data sheet, 2022: 75% of memory and 32 bits, 40% of tensor cores";
const L4_SHEET: &str = "NVIDIA L4 data sheet, 2023: 75% of memory and 32 bits, 40% of tensor cores without sparsity";
const L40S_SHEET: &str =
    "NVIDIA L40S data sheet, 2023: 75% of memory and 32 bits, 40% of tensor cores without sparsity";
const T4_SHEET: &str = "NVIDIA T4 data sheet, 2019: 75% of memory and 32 bits, 40% of tensor cores";
const V100_SHEET: &str = "NVIDIA V100 data sheet, 2020: 75% of memory and 32 bits, 40% of tensor cores";

pub(crate) const RTX_3090: NamedMachine = card(
    "3090",
    "RTX 3090",
    Sheet { mib: 24576.0, memory: 936.0, f32: 35.6, tf32: 35.6, half: 71.0, link: PCIE_4, source: AMPERE },
);
pub(crate) const RTX_4090: NamedMachine = card(
    "4090",
    "RTX 4090",
    Sheet { mib: 24564.0, memory: 1008.0, f32: 82.6, tf32: 82.6, half: 165.2, link: PCIE_4, source: ADA },
);
pub(crate) const RTX_5090: NamedMachine = card(
    "5090",
    "RTX 5090",
    Sheet { mib: 32607.0, memory: 1792.0, f32: 104.8, tf32: 104.8, half: 209.5, link: PCIE_5, source: BLACKWELL },
);
pub(crate) const A6000: NamedMachine = card(
    "a6000",
    "RTX A6000",
    Sheet { mib: 49140.0, memory: 768.0, f32: 38.7, tf32: 77.4, half: 154.8, link: PCIE_4, source: AMPERE },
);
pub(crate) const A100: NamedMachine = card(
    "a100",
    "A100",
    Sheet { mib: 81920.0, memory: 2039.0, f32: 19.5, tf32: 156.0, half: 312.0, link: PCIE_4, source: A100_SHEET },
);
pub(crate) const L4: NamedMachine = card(
    "l4",
    "L4",
    Sheet { mib: 23034.0, memory: 300.0, f32: 30.3, tf32: 60.0, half: 121.0, link: PCIE_4, source: L4_SHEET },
);
pub(crate) const L40S: NamedMachine = card(
    "l40s",
    "L40S",
    Sheet { mib: 46068.0, memory: 864.0, f32: 91.6, tf32: 183.0, half: 362.05, link: PCIE_4, source: L40S_SHEET },
);
pub(crate) const T4: NamedMachine = card(
    "t4",
    "T4",
    Sheet { mib: 15360.0, memory: 320.0, f32: 8.1, tf32: 8.1, half: 65.0, link: PCIE_3, source: T4_SHEET },
);
pub(crate) const V100: NamedMachine = card(
    "v100",
    "V100",
    Sheet { mib: 32768.0, memory: 900.0, f32: 15.7, tf32: 15.7, half: 125.0, link: PCIE_3, source: V100_SHEET },
);
