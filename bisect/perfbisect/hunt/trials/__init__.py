"""Trials, which measure builds in rounds without a search: `bisect noise`, `bisect compare` and `bisect prove`."""
