"""What happens to each saved tensor of a recorded step, within a budget."""
