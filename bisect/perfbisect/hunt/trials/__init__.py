"""Builds measured in rounds, without a search: `bisect noise` and `bisect compare`."""
