"""Mixed precision: the floating-point types of a network's operators."""

from mxtrain.config.moved import moved_names

__getattr__ = moved_names(__name__)
