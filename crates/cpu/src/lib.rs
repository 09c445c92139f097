//! Convolution algorithms on the CPU.
