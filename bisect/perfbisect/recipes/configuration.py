"""The user's own settings: ``config.toml`` in the configuration folder.

No other place counts: what it names is executed, so the folder of a clone must not have a say.
"""

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import msgspec

from perfbisect.folders import config_folder
from perfbisect.recipes.inventory import Remote, Size
from perfbisect.recipes.toml_reader import Location, convert, read_table

CONFIGURATION = "config.toml"
LEAST = 16  # bytes of a key


Place = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(~?/|[a-z][a-z0-9+.-]*://)[^\s]+\Z",
        description='an absolute path, or an address such as "s3://bucket/builds"',
    ),
]


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What this user shares with others: finished builds, and what ccache knows."""

    builds: Place | None = None  # where finished builds are kept
    key_file: str = ""  # whose contents sign builds, and are asked of those that are taken
    keep: Size = "500G"  # what `bisect gc --shared` leaves
    ccache: Remote = ""  # the `ccache_remote` of hosts that have none

    def secret(self) -> bytes:
        """The contents of ``key_file``, b"" where none is named. Raises RecipeError for one that is no secret."""
        if not self.key_file:
            return b""
        file = Path(self.key_file).expanduser()
        where = Location(config_folder() / CONFIGURATION).at("shared", "key_file")
        try:
            secret, mode = file.read_bytes().strip(), file.stat().st_mode
        except OSError as error:
            raise where.mistake(f"cannot be read: {error.strerror}: {file}.") from error
        if mode & 0o077:
            raise where.mistake("can be read by other users.", f"chmod 600 {file}")
        if len(secret) < LEAST:
            raise where.mistake(f"has fewer than {LEAST} characters.", f"openssl rand -hex 32 >{file}")
        return secret


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user has set."""

    notify: str = ""  # the default of --notify
    shared: Shared = Shared()


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
