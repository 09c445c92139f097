"""Carries out plans in eager passes: hooks on saved tensors, copies, and calls of the same pass that run again."""
