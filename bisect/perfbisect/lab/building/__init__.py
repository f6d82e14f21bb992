"""From a commit to an installed build on a host."""
