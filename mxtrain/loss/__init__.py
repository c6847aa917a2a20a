"""Loss functions: one value per sample, so that the mean is always over the global batch."""
