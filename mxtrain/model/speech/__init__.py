"""What networks that score characters along frames have in common."""
