"""The git history of a hunt: revisions, range, candidates."""
