"""Calculates the probability of every candidate from the log of a hunt."""
