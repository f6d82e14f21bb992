"""A stored hunt, told: pure functions from records to text."""
