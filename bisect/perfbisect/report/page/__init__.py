"""HTML pages: one self-contained file for a hunt, a trial, or the list of all sessions."""
