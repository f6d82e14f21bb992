"""The commands of `bisect`: each module has one or more commands. If a module does not have the name of the command,
``cli.main.IN`` lists it."""
