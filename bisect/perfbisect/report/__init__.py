"""Reports of stored hunts and trials: pure functions from records to text."""
