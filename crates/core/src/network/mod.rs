//! Networks as graphs of layers, and the built-in ones.
