"""Carries out hunts and trials: sets them up, locks their hosts, and runs the loop that measures until the verdict of a
hunt or the end of a trial."""
