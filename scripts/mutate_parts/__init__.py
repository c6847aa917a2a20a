"""Mutation testing: which changes of the program does no test notice?"""
