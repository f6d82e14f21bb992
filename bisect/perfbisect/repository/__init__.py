"""The git history of a hunt: its revisions, its range and its candidates."""
