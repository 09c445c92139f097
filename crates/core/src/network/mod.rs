//! Networks as graphs of layers, and the built-in ones.
/// k
pub struct Kernel {
    /// a
    pub layer: String,
    /// p
    pub problem: crate::Problem,
}
