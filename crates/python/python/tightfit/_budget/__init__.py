"""Fits PyTorch models into a budget of bytes. The doors are in `tightfit.torch`."""
