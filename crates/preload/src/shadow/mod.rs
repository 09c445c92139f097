//! What the program has told cuDNN. cuDNN cannot return all of it, so every descriptor has a shadow here that stores
//! the attributes set and, once finalized, the object they describe.
//!
//! ```text
//! cudnnBackend..   Create     Set        Finalize          Get (objects)          Destroy
//! shadow           new        attribute  attributes->Made  link of what it fills  gone
//! ```
//!
//! Frontends destroy descriptors long before they run a plan, and addresses are reused. So a reference to another
//! descriptor shares its content at that time ([`Made`] is an `Arc` inside), not its address. Shadows are sharded by
//! address, and no shard stays locked during a cuDNN call.

mod attribute;
mod made;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use attribute::{Attributes, Value};
pub use made::{Graph, Made};
use tightfit_cuda::sys::cudnn::{Attribute, Kind};

/// A descriptor's address.
pub type Address = usize;

/// One descriptor.
struct Shadow {
    kind: Kind,
    attributes: Attributes,
    made: Option<Made>,
}

/// Hashes addresses, which are already spread out, with one multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_usize(&mut self, value: usize) {
        let mixed = (value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type Shard = Mutex<Option<HashMap<Address, Shadow, BuildHasherDefault<AddressHasher>>>>;
const SHARDS: usize = 64;
static SHADOWS: [Shard; SHARDS] = [const { Mutex::new(None) }; SHARDS];

fn shard(address: Address) -> MutexGuard<'static, Option<HashMap<Address, Shadow, BuildHasherDefault<AddressHasher>>>> {
    // Descriptors are at least 16 bytes apart.
    let place = (address >> 4) ^ (address >> 10);
    SHADOWS[place % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor was created.
pub fn create(address: Address, kind: Kind) {
    let shadow = Shadow { kind, attributes: Attributes::default(), made: None };
    shard(address).get_or_insert_default().insert(address, shadow);
}

/// A descriptor is about to be destroyed.
pub fn destroy(address: Address) {
    let gone = shard(address).as_mut().and_then(|shadows| shadows.remove(&address));
    // Dropped here, after the shard is unlocked.
    drop(gone);
}

/// An attribute was set.
pub fn set(address: Address, attribute: Attribute, value: Value) {
    if let Some(shadow) = shard(address).as_mut().and_then(|shadows| shadows.get_mut(&address)) {
        shadow.attributes.set(attribute, value);
    }
}

/// The attributes of a descriptor that was just finalized; none if its creation was not seen.
pub fn take_attributes(address: Address) -> Option<(Kind, Attributes)> {
    let mut shard = shard(address);
    let shadow = shard.as_mut()?.get_mut(&address)?;
    Some((shadow.kind, std::mem::take(&mut shadow.attributes)))
}

/// Stores what a descriptor stands for from now on.
pub fn fill(address: Address, made: Made) {
    let before = match shard(address).as_mut().and_then(|shadows| shadows.get_mut(&address)) {
        Some(shadow) => shadow.made.replace(made),
        None => None,
    };
    drop(before);
}

/// What a descriptor stands for.
pub fn made(address: Address) -> Option<Made> {
    shard(address).as_ref()?.get(&address)?.made.clone()
}
