"""Python API with the functions of the command line, for scripts and notebooks.

>>> import mxtrain
>>> run = mxtrain.train("debug=fast", dir="outputs/first")
>>> run.metrics["test/accuracy"], run.predict("digit.png")

Functions never exit the process: errors that the command line prints before work starts are raised with the same text.
Environment variables, log handlers, warning filters and signal handlers are restored when a function returns.
"""

from mxtrain.api.descriptions import check_data, compose, dry_run, explain
from mxtrain.api.networks import average, check_export, evaluate, export, predict, slim, soup
from mxtrain.api.records import diff, push, replay, reproduce
from mxtrain.api.run import Run, load
from mxtrain.api.searches import Sweep, sweep, tune
from mxtrain.api.training import lr_find, score, train, verify

__all__ = [
    "Run",
    "Sweep",
    "average",
    "check_data",
    "check_export",
    "compose",
    "diff",
    "dry_run",
    "evaluate",
    "explain",
    "export",
    "load",
    "lr_find",
    "predict",
    "push",
    "replay",
    "reproduce",
    "score",
    "slim",
    "soup",
    "sweep",
    "train",
    "tune",
    "verify",
]
