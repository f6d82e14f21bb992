"""What is looked at on a host before it measures: one module for each thing, each a generator of findings."""
