"""What was asked for: one validated object for each group, the rules between groups, and where it came from."""
