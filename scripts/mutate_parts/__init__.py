"""Mutation testing: finds changes of the program that no test detects."""
