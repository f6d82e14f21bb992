"""One visit to a build: start the system, warm up, run, count, stop."""
