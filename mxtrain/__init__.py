"""mxtrain: declarative training on Apache MXNet. Importing this package imports no MXNet."""

__version__ = "0.1.0"
