"""Users, items and what they have to do with each other: interactions and ratings, as sources and batches."""
