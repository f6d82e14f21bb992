"""Why a culprit is slower: functions that turn the measurements into classes of causes, changed functions and query
plans.
"""
