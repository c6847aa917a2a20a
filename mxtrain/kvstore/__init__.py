"""Gradient stores: how gradients and parameters are exchanged between devices, processes and machines."""

from mxtrain.config.moved import moved_names

__getattr__ = moved_names(__name__)
