"""Python API with the functions of the command line, for scripts and notebooks.

>>> import mxtrain
>>> run = mxtrain.train("debug=fast", dir="outputs/first")
>>> run.metrics["test/accuracy"], run.predict("digit.png")

Functions never exit the process: errors that the command line prints before work starts are raised with the same text.
Environment variables, log handlers, warning filters and signal handlers are restored when a function returns.

`mxtrain/__init__.py` lists the public names.
"""
