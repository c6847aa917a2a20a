"""MXNet's optimizers by name: descriptions, and the updater that applies them to canonical parameters."""
