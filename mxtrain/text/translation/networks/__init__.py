"""Encoders, decoders and beam search as Gluon blocks."""
