"""A database server: its configuration, start and stop."""
