"""Each module has the commands of one or more verbs of `bisect`; ``cli.main.IN`` lists verbs whose module has another
name."""
