"""Mixed precision: the floating-point types of a network's operators."""
