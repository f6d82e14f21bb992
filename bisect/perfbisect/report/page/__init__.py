"""Renders HTML pages of hunts, trials and lists of sessions. Each page is a single file, which needs no other files."""
