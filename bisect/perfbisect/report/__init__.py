"""Makes the reports of stored hunts and trials. All functions are pure: they convert stored data to text."""
