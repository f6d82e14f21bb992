"""Decides what to measure next, and when to stop."""
