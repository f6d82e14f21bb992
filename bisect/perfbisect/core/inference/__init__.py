"""Computes for every candidate, from the log of a hunt, the probability that the candidate is the culprit."""
