"""Files that are complete or absent, and the user's cache folder."""
