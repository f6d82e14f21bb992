"""Each module has one verb, and has the name of the verb."""
