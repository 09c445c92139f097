//! Checks that the host has enough memory for a plan, before allocating any.

use tightfit_cpu::host_memory::free;
use tightfit_units::Bytes;

use crate::Error;

/// Checks that the host has this much memory available.
///
/// # Errors
/// [`Error::HostMemory`], which names the limit.
pub fn check(needed: Bytes) -> Result<(), Error> {
    match free() {
        Some(free) if needed > free.bytes => Err(Error::HostMemory { needed, free: free.bytes, limit: free.limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_a_request_is_rejected() {
        let error = check(Bytes(1 << 62)).unwrap_err();
        assert!(error.to_string().contains("host budget"), "{error}");
    }
}
