"""The description of a run: one validated object for each group, the rules between groups, and where it came from."""
