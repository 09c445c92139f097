//! Runs configurations and proves that they compute the same.
