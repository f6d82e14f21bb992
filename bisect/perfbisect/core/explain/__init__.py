"""Explains why a culprit is slower: functions that derive possible causes, changed functions and changed query plans
from the measurements.
"""
