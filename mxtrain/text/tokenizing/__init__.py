"""Tokenizers behind one protocol: WordPiece, files of `tokenizers` and sentencepiece, words and characters."""
