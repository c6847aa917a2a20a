"""Reads a network as a graph of operators: its layers, its work, and the operators that are replaced."""
