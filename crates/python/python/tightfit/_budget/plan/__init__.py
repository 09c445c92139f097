"""Decides for each saved tensor of a recorded step within a budget: keep, move, recompute or drop."""
