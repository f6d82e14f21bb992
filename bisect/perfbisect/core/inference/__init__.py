"""From the log of a hunt to the probability of every candidate."""
