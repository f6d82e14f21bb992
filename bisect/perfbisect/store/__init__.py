"""The history: an append-only log in SQLite, and the views people ask of it."""
