//! The library of `tightfit-preload` without cuDNN's SONAME and version node: Cargo builds a package once in a build, and its link
//! arguments belong to the package.

#[doc(hidden)]
pub use tightfit_preload;
