//! .
pub fn count() -> u64 {
    0
}
pub fn reset() {}
