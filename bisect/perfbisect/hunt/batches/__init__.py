"""Several hunts at once, as many as their hosts allow: `bisect batch` and `bisect resume --all`."""
