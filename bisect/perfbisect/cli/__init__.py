"""The command line of `bisect`: parses arguments, prints results, and sets the exit status."""
