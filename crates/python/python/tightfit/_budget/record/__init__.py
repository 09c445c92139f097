"""A step as data: its operations, tensors and saved tensors, and their costs."""
