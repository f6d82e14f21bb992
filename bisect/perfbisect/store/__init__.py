"""The history: an append-only log in SQLite, and tables and views for SQL queries."""
