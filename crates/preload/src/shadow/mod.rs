//! The program's descriptors. cuDNN cannot return all of their attributes, so every descriptor has a shadow here: facts
//! only, the attributes set and, once finalized, the object made of them.
//!
//! ```text
//! cudnnBackend..   Create     Set          Finalize                Get (objects)            Destroy
//! shadow           new        attributes   attributes -> Object    an Object for each       gone
//! ```
//!
//! Frontends destroy descriptors long before they run a plan, and addresses are reused. So an attribute that names another
//! descriptor holds that descriptor's object of that time, not its address. The layers above keep their conclusions from an
//! object with it, as notes of a type `N`. Such a note lives exactly as long as something leads to the object, and finding
//! it takes no other lock. Shadows are sharded by address, and no shard stays locked during a cuDNN call.

mod object;

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

pub use object::{Attributes, Object, Value};
use tightfit_cuda::sys::cudnn::{Attribute, ElementType, Kind};

use crate::lock::lock;

/// A descriptor's address.
pub type Address = usize;

/// One descriptor.
struct Shadow<N> {
    kind: Kind,
    attributes: Attributes<N>,
    object: Option<Arc<Object<N>>>,
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

type Shard<N> = HashMap<Address, Shadow<N>, BuildHasherDefault<AddressHasher>>;
const SHARDS: usize = 64;

/// The shadows of all descriptors.
pub struct Shadows<N>([Mutex<Shard<N>>; SHARDS]);

impl<N> Default for Shadows<N> {
    fn default() -> Shadows<N> {
        Shadows(std::array::from_fn(|_| Mutex::default()))
    }
}

impl<N: Default> Shadows<N> {
    fn shard(&self, address: Address) -> MutexGuard<'_, Shard<N>> {
        // Descriptors are at least 16 bytes apart.
        let place = (address >> 4) ^ (address >> 10);
        lock(&self.0[place % SHARDS])
    }

    /// A descriptor was created.
    pub fn create(&self, address: Address, kind: Kind) {
        let shadow = Shadow { kind, attributes: Attributes::default(), object: None };
        let replaced = self.shard(address).insert(address, shadow);
        drop(replaced);
    }

    /// A descriptor is about to be destroyed.
    pub fn destroy(&self, address: Address) {
        let gone = self.shard(address).remove(&address);
        // Dropped here, after the shard is unlocked.
        drop(gone);
    }

    /// An attribute was set, to `count` elements at `array`.
    ///
    /// # Safety
    /// `array` points to `count` elements of the C type that `element` names.
    pub unsafe fn set(
        &self,
        address: Address,
        attribute: Attribute,
        (element, count, array): (ElementType, i64, *const c_void),
    ) {
        // SAFETY: forwarded to the caller. Read before the shard is locked, because it may look into other shadows.
        let value = unsafe { Value::read(element, count, array, |address| self.object(address)) };
        if let Some(shadow) = self.shard(address).get_mut(&address) {
            shadow.attributes.set(attribute, value);
        }
    }

    /// A descriptor was finalized: the object that its attributes describe, or `None` if its creation was not seen.
    pub fn finalize(&self, address: Address) -> Option<Arc<Object<N>>> {
        let mut shard = self.shard(address);
        let shadow = shard.get_mut(&address)?;
        let object = Arc::new(Object::new(shadow.kind, std::mem::take(&mut shadow.attributes)));
        let replaced = shadow.object.replace(object.clone());
        drop(shard);
        drop(replaced);
        Some(object)
    }

    /// Replaces the object of a descriptor by one without attributes: cuDNN made it, or its notes are complete.
    pub fn fill(&self, address: Address, notes: N) {
        let mut shard = self.shard(address);
        let Some(shadow) = shard.get_mut(&address) else { return };
        let replaced = shadow.object.replace(Arc::new(Object::filled(shadow.kind, notes)));
        drop(shard);
        drop(replaced);
    }

    /// The object of a descriptor, or `None` if it was not finalized or not seen.
    pub fn object(&self, address: Address) -> Option<Arc<Object<N>>> {
        self.shard(address).get(&address)?.object.clone()
    }

    /// Takes over the shadows of a parent process, in a child, where no thread can hold its locks any more: a shard
    /// that another thread of the parent had locked is lost.
    pub fn adopt(&self, parent: &Shadows<N>) {
        for (own, parents) in self.0.iter().zip(&parent.0) {
            let shard = match parents.try_lock() {
                Ok(mut shard) => std::mem::take(&mut *shard),
                Err(TryLockError::Poisoned(poisoned)) => std::mem::take(&mut *poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => continue,
            };
            *lock(own) = shard;
        }
    }
}
