"""The steps from a commit to an installed build on a host."""
