"""Columns of features: how each is described, stored and counted over the training data."""
