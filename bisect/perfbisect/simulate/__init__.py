"""A simulated lab: the same search on a host and a history whose truth is known."""
