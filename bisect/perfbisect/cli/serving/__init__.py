"""What `bisect serve` is made of."""
