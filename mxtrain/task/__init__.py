"""Tasks connect a dataset to a network: a task defines the loss, the metrics and the form of predictions."""

from mxtrain.task.spec import Task

__all__ = ["Task"]
