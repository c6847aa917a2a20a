"""The commands as functions, for the command line, the Python API and notebooks.

A workflow `x` takes a `XSettings(Spec)` and objects, e.g. a `RestoredRun` or a `Description`. It returns a `XResult`,
a frozen dataclass. It prints nothing, reads no `sys.argv`, and knows neither Hydra nor `mxtrain.cli`, whose module `x`
parses the command line and prints the result. Long work reports to a `WorkProgress`; by default nothing is shown.
"""
