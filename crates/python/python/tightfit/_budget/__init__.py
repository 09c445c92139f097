"""Fits PyTorch models into a budget of bytes. The public functions are in `tightfit.torch`."""
