"""Checks of a host before it measures: one module for each subject, each check a generator of findings."""
