"""A simulated lab: the search of real hunts on a simulated host and a history with a known culprit."""
