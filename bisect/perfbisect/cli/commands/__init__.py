"""The commands of `bisect`: each module has one or more commands. If a command and its module have different names,
``cli.main.IN`` maps the command to the module."""
