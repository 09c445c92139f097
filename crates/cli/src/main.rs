//! The tightfit command.
fn main() {}
