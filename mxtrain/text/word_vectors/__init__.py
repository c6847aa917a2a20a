"""Reads published word vectors (GloVe, word2vec, fastText) into the embeddings of a network."""
