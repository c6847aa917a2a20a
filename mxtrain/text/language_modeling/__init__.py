"""Language models: the next token of a running text, or hidden tokens of it."""
