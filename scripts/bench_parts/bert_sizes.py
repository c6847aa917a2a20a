"""What all sides of the race know of BERT. Needs nothing but the standard library."""

BERT_SIZES = {"bert_base": (12, 768, 3072, 12), "bert_4": (4, 512, 2048, 8)}
"""Layers, units, hidden units, heads."""
VOCAB_SIZE = 30522
NUM_CLASSES = 10
