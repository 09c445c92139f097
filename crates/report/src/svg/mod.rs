//! Charts as SVG: one picture per file, drawn with a small canvas, axes and legend.
//!
//! Chart libraries lack what these pictures need: an axis of bytes by powers of two, with places for "none" and
//! "unlimited", and columns whose blocks are micro-batches. Every function returns a complete SVG document with generic
//! fonts; a picture grows with its content, so that labels stay readable from one kernel to hundreds.
//!
//! ```text
//! canvas    shapes and text in pixels, y downwards
//! axis      values -> 0..1, ticks -> lines and labels around a frame
//! legend    one color and one marker per name
//! ```

mod allotment;
pub(super) mod axis;
pub(super) mod canvas;
mod front;
pub(super) mod legend;
mod limits;
mod per_layer;

pub use allotment::allotment;
pub use front::front;
pub use limits::{Curve, limits};
pub use per_layer::per_layer;

#[cfg(test)]
pub(super) mod well_formed;
