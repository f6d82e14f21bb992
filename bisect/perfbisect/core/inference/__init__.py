"""Computes, from the log of a hunt, the probability of each candidate that it is the culprit."""
