"""The files beside a recipe, brought to a host: what ``{recipe}`` stands for there."""

from pathlib import PurePosixPath

from perfbisect.host.protocol import Host
from perfbisect.lab.upload import files
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import recipe_files


def archive(builder: Builder) -> bytes:
    """The recipe's files and those that it inherits, the same bytes for the same contents."""
    return files.archive(recipe_files(builder))


def place(host: Host, builder: Builder) -> PurePosixPath:
    """The folder on the host with the recipe's files."""
    return files.place(host, "recipes", recipe_files(builder))
