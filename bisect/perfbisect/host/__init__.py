"""A place where commands run: every effect on a machine goes through a Host."""
