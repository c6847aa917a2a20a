"""Compares every operator of MXNet that a network can hold with NumPy, forward and backward, under many conditions."""
