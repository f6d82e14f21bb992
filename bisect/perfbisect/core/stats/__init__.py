"""Statistics: probability distributions, variance components, and ratios of paired measurements."""
