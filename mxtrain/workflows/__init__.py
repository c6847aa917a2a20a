"""The commands as functions: each takes settings and returns a result. Nothing here prints or reads `sys.argv`."""
