"""Gradient stores: how gradients and parameters are exchanged between devices, processes and machines."""
