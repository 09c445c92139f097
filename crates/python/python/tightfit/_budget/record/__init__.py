"""A step as data: its operations, tensors and saved tensors, with what they cost."""
