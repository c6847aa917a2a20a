"""A class for every token of a sentence, such as the parts of names (CoNLL)."""
