"""The task of a run joins a dataset to a network, and says how wrong it is, how good, and what it predicted."""

from mxtrain.task.spec import Task

__all__ = ["Task"]
