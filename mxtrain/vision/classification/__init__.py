"""Images with a class each: datasets and networks."""
