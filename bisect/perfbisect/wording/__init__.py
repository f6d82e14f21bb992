"""Writes all sentences, numbers and tables that people read."""
