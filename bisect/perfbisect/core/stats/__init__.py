"""Distributions, variance components and ratios of paired measurements."""
