"""Disk space, and what an interrupted session left behind."""
