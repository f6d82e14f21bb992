"""Simulates measurements: the real search runs on a simulated host and a simulated git history whose culprit is
known."""
