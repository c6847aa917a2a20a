"""MXNet as we use it: names that depend on its version, limits, traces, and operators of our own."""
