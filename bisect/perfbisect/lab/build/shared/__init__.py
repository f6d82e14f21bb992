"""Finished builds that several machines share."""
