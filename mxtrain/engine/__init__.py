"""MXNet as we use it: the names that depend on its version, its limits and traces, and operators of our own."""
