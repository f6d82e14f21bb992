"""A builder and a suite for a repository that no recipe describes, guessed from names and build files of its tree.

Guesses only propose: nothing here runs, and what is written is for the user to change.
"""
