"""What to measure next, and when to stop."""
