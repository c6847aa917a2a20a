"""What datasets of texts share: vocabularies, sources, and batches of texts of like length."""
