"""One visit: start, warm up, run, count, stop."""
