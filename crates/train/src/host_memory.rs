//! Whether the host has the memory that a plan takes, before any of it is taken.

use tightfit_core::Bytes;
use tightfit_cpu::host_memory::free;

use crate::Error;

/// Whether the host can give so much.
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
    fn more_than_there_is_is_refused_by_name() {
        let error = check(Bytes(1 << 62)).unwrap_err();
        assert!(error.to_string().contains("--host-budget"), "{error}");
    }
}
