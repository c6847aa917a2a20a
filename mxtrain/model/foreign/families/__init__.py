"""One module for each family of foreign networks, with its table of names as `FAMILY`."""
