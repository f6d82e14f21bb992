"""Pages in HTML: one self-contained file for a hunt, a trial, or the list of all."""
