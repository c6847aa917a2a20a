"""A mask for every object in an image."""
