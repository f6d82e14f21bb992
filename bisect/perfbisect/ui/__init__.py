"""Views of a running hunt. They draw events and are never called by the work."""
