"""Makes an installed build from a commit on a host."""
