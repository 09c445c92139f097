//! The figures of a machine that a step's plan depends on.

use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Error};

use super::{CostModel, MAX_LANES, NamedMachine};

/// The link between device and host, and the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "MachineObject", into = "MachineObject")]
pub struct Machine {
    /// One of the [`MACHINES`](crate::MACHINES), if the file names one.
    // Read and written as a separate key; without this, serde would borrow it.
    #[serde(skip)]
    pub name: Option<&'static str>,
    /// Copy rate to the host.
    pub to_host_bytes_per_s: f64,
    /// Copy rate from the host.
    pub to_device_bytes_per_s: f64,
    /// Copy rates of both directions together while both run; by default only the larger one.
    pub both_bytes_per_s: Option<f64>,
    /// Time of a computation during a copy, as a multiple of its time alone.
    pub slowdown_beside_copies: f64,
    /// Time that a copy either way adds to the step, in microseconds, where the device waits for its host; 0 by default.
    pub copy_host_us: f64,
    /// Pinned host memory that the step may use; unlimited by default.
    pub host_bytes: Option<Bytes>,
    /// The share of the link's rates that this device gets while others copy too.
    pub link_share: f64,
    /// Throughput on several compute streams of the program that carries out the plan, as a multiple of one stream's. The default is 1, so that plans
    /// have a single lane.
    pub side_by_side: f64,
}

/// A machine as a file describes it.
#[derive(Serialize, Deserialize)]
struct MachineObject {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default)]
    to_host_bytes_per_s: Option<f64>,
    #[serde(default)]
    to_device_bytes_per_s: Option<f64>,
    #[serde(default)]
    both_bytes_per_s: Option<f64>,
    #[serde(default)]
    slowdown_beside_copies: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copy_host_us: Option<f64>,
    #[serde(default)]
    host_bytes: Option<Bytes>,
    #[serde(default)]
    link_share: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    side_by_side: Option<f64>,
}

impl TryFrom<MachineObject> for Machine {
    type Error = String;

    fn try_from(object: MachineObject) -> Result<Machine, String> {
        let named = object.name.as_deref().map(NamedMachine::named).transpose().map_err(|error| error.to_string())?;
        let rate = |key: &str, stated: Option<f64>, known: Option<f64>| {
            stated.or(known).ok_or_else(|| format!("machine has neither a name nor {key}"))
        };
        let (out, back) = (named.map(|of| of.to_host.value), named.map(|of| of.to_device.value));
        // The name's rate for both directions does not apply if the file overrides a rate of the name.
        let both = named.filter(|_| object.to_host_bytes_per_s.is_none() && object.to_device_bytes_per_s.is_none());
        Ok(Machine {
            name: named.map(|of| of.name),
            to_host_bytes_per_s: rate("to_host_bytes_per_s", object.to_host_bytes_per_s, out)?,
            to_device_bytes_per_s: rate("to_device_bytes_per_s", object.to_device_bytes_per_s, back)?,
            both_bytes_per_s: object.both_bytes_per_s.or(both.map(|of| 2.0 * of.both.value)),
            slowdown_beside_copies: object
                .slowdown_beside_copies
                .unwrap_or(1.0 + named.map_or(0.0, |of| of.beside_copies.value)),
            copy_host_us: object.copy_host_us.unwrap_or(0.0),
            host_bytes: object.host_bytes,
            link_share: object.link_share.unwrap_or(1.0),
            side_by_side: object.side_by_side.unwrap_or(1.0),
        })
    }
}

impl From<Machine> for MachineObject {
    fn from(machine: Machine) -> MachineObject {
        MachineObject {
            name: machine.name.map(str::to_owned),
            to_host_bytes_per_s: Some(machine.to_host_bytes_per_s),
            to_device_bytes_per_s: Some(machine.to_device_bytes_per_s),
            both_bytes_per_s: machine.both_bytes_per_s,
            slowdown_beside_copies: Some(machine.slowdown_beside_copies),
            copy_host_us: Some(machine.copy_host_us).filter(|time| *time > 0.0),
            host_bytes: machine.host_bytes,
            link_share: Some(machine.link_share),
            side_by_side: Some(machine.side_by_side).filter(|gain| *gain > 1.0),
        }
    }
}

impl Machine {
    /// The costs of copies on this machine.
    pub fn costs(&self) -> CostModel {
        let share = self.link_share;
        let (out, back) = (self.to_host_bytes_per_s * share, self.to_device_bytes_per_s * share);
        CostModel {
            name: self.name.unwrap_or("recorded").to_owned(),
            offload_rate: out,
            prefetch_rate: back,
            both_rate: self.both_bytes_per_s.map_or(out.max(back), |both| both * share / 2.0),
            beside_copies: self.slowdown_beside_copies - 1.0,
            side_by_side: self.side_by_side,
            ..self.name.and_then(|name| CostModel::named(name).ok()).unwrap_or_else(CostModel::h200)
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let rates = [
            ("to_host_bytes_per_s", self.to_host_bytes_per_s, 1.0, 1e15),
            ("to_device_bytes_per_s", self.to_device_bytes_per_s, 1.0, 1e15),
            ("both_bytes_per_s", self.both_bytes_per_s.unwrap_or(1.0), 1.0, 1e15),
            ("slowdown_beside_copies", self.slowdown_beside_copies, 1.0, 1000.0),
            ("copy_host_us", self.copy_host_us, 0.0, 1e6),
            ("link_share", self.link_share, 1e-6, 1.0),
            ("side_by_side", self.side_by_side, 1.0, MAX_LANES as f64),
        ];
        match rates.iter().find(|(_, rate, least, most)| !(*least..=*most).contains(rate)) {
            Some((key, rate, least, most)) => {
                Err(bad(format!("machine.{key} is {rate}; it must be between {least} and {most}")))
            }
            None => Ok(()),
        }
    }
}

/// The error for a wrong value in a step file.
pub(super) fn bad(what: impl ToString) -> Error {
    Error::BadDocument { document: "step", what: what.to_string() }
}
