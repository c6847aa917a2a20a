"""Reads finished and running runs from their directories, which are the only registry. Imports no MXNet.

A run directory may be untrusted: its files are read within limits, links are not followed, and nothing of it is
evaluated.
"""
