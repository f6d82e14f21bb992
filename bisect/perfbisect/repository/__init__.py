"""The git history under hunt: which revisions, which range, which candidates."""
