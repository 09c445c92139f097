//! The machine that a step runs on, as far as its plan depends on it.

use serde::{Deserialize, Serialize};

use super::file::bad;
use crate::plan::CostModel;
use crate::{Bytes, Error};

/// The link between device and host, and the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Copy rate to the host.
    pub to_host_bytes_per_s: f64,
    /// Copy rate from the host.
    pub to_device_bytes_per_s: f64,
    /// Copy rates of both directions together while both run; the sum of both if the file does not say.
    #[serde(default)]
    pub both_bytes_per_s: Option<f64>,
    /// Time of a computation beside a copy, as a multiple of its time alone.
    #[serde(default = "one")]
    pub slowdown_beside_copies: f64,
    /// Pinned host memory that the step may use; unlimited if the file does not say.
    #[serde(default)]
    pub host_bytes: Option<Bytes>,
    /// The share of the link's rates that this device gets while others copy too.
    #[serde(default = "one")]
    pub link_share: f64,
}

fn one() -> f64 {
    1.0
}

impl Machine {
    /// The costs of copies on this machine.
    pub fn costs(&self) -> CostModel {
        let share = self.link_share;
        let (out, back) = (self.to_host_bytes_per_s * share, self.to_device_bytes_per_s * share);
        CostModel {
            name: "recorded".to_owned(),
            offload_rate: out,
            prefetch_rate: back,
            both_rate: self.both_bytes_per_s.map_or(out.max(back), |both| both * share / 2.0),
            beside_copies: self.slowdown_beside_copies - 1.0,
            ..CostModel::h200()
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let rates = [
            ("to_host_bytes_per_s", self.to_host_bytes_per_s, 1.0, 1e15),
            ("to_device_bytes_per_s", self.to_device_bytes_per_s, 1.0, 1e15),
            ("both_bytes_per_s", self.both_bytes_per_s.unwrap_or(1.0), 1.0, 1e15),
            ("slowdown_beside_copies", self.slowdown_beside_copies, 1.0, 1000.0),
            ("link_share", self.link_share, 1e-6, 1.0),
        ];
        match rates.iter().find(|(_, rate, least, most)| !(*least..=*most).contains(rate)) {
            Some((key, rate, least, most)) => {
                Err(bad(format!("machine.{key} is {rate}; it must be between {least} and {most}")))
            }
            None => Ok(()),
        }
    }
}
