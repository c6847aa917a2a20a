"""Questions whose answer is a part of a text (SQuAD)."""
