"""The user's own settings: ``config.toml`` in the configuration folder.

No other place counts: what it names is executed, so the folder of a clone must not have a say.
"""

import shlex
import shutil

import msgspec

from perfbisect.folders import config_folder
from perfbisect.recipes.toml_reader import Location, convert, read_table

CONFIGURATION = "config.toml"


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user has set."""

    notify: str = ""  # the default of --notify


def load_configuration() -> Configuration:
    """The user's settings; the defaults without a file. Raises RecipeError for a mistake in it."""
    file = config_folder() / CONFIGURATION
    return convert(read_table(file), Configuration, Location(file)) if file.exists() else Configuration()


def configured_notification() -> tuple[str, ...]:
    """The arguments of the configured ``notify``; none if it is not set. Raises RecipeError for a mistake in it."""
    try:
        return words(load_configuration().notify)
    except ValueError as mistake:
        raise Location(config_folder() / CONFIGURATION).at("notify").mistake(f"cannot be run: {mistake}.") from mistake


def words(command: str) -> tuple[str, ...]:
    """The arguments of a command, split as a shell splits them; no shell is involved. None for an empty text.

    Raises ValueError, with what is wrong, where the quotes do not match or no such program exists.
    """
    found = tuple(shlex.split(command))
    if found and shutil.which(found[0]) is None:
        raise ValueError(f"there is no program {found[0]}")
    return found
