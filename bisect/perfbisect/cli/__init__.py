"""The command line: parses arguments, prints, and sets the exit status."""
