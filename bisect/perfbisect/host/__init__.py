"""Runs commands on machines: every command and file for a machine is sent through a Host."""
