"""Renders HTML pages of hunts, trials and lists of sessions. Each page is a single file without other files."""
