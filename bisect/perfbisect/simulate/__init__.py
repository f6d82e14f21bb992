"""A simulated lab: real hunts search on a simulated host and a simulated history, whose culprit is known."""
