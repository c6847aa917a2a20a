"""Early stopping: ends a run when the monitored value no longer gets better."""

from mxtrain.config.moved import moved_names

__getattr__ = moved_names(__name__)
