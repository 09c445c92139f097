//! The keys of measurements: a convolution's shape, or a training step's name.

use tightfit_conv::Types;

/// The key of a network's measured training steps, instead of a problem's shape.
///
/// ```
/// use tightfit_conv::Types;
/// use tightfit_profile::step_name;
/// assert_eq!(step_name("resnet18", Types::F32), "step resnet18 f32");
/// ```
pub fn step_name(network: &str, types: Types) -> String {
    format!("step {network} {types}")
}

/// Whether measurements of this name are of training steps, as [`step_name`] names them, and not of a convolution.
pub fn is_step_name(name: &str) -> bool {
    name.starts_with("step ")
}
