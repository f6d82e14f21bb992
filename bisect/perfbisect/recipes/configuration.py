"""The user's configuration folder: ``config.toml``, and where recipes are searched.

That is in a folder given by option, in the configuration folder, and in the recipes of perfbisect. Those of the working
directory count only as the default of an option: see ``working_directory``. So a hunt keeps the folder that it began with,
and nothing below this module depends on the working directory. Nor does a ``config.toml`` count that is anywhere else:
what it names is executed, so the folder of a clone must not have a say.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from perfbisect.errors import RecipeError, UsageError
from perfbisect.folders import config_folder
from perfbisect.recipes.toml import Location, convert, hint, listed, matching, read_table

Thing = TypeVar("Thing")
PACKAGE = Path(__file__).parents[1]
SHIPPED = (PACKAGE, PACKAGE.parents[1])  # recipes are in the installed package, or at the top of a checkout

BUILDERS, WORKLOADS, HOSTS = "builders", "workloads", "hosts.toml"
CONTENTS = {BUILDERS: "*/builder.toml", WORKLOADS: "*/suite.toml"}
BARE = ("HEAD", "objects", "refs")  # what makes a folder a bare git repository


def recipe_places(name: str, given: str | Path = "") -> list[Path]:
    """The folders with recipes called ``name`` (BUILDERS, WORKLOADS), or the inventories (HOSTS); the first has precedence.

    Raises UsageError when what is ``given`` by the user does not exist.
    """
    kind, exists = ("file", Path.is_file) if name == HOSTS else ("folder", Path.is_dir)
    if given and not exists(Path(given)):
        takes = "a file such as hosts.toml" if name == HOSTS else "a folder with one folder for each recipe"
        raise UsageError(f"There is no {kind} {given}.", f"--{name.partition('.')[0]} takes {takes}.")
    places = [*([Path(given)] if given else []), *own_places(name)]
    return list(dict.fromkeys(place.resolve() for place in places if place.exists()))


def contained(path: Path, top: Path) -> Path:
    """``path``, a file of a recipe, if it does not lead out of ``top``, the folder of recipes that it was found in.

    Files of a recipe are sent to hosts, so a link to another file of this machine would hand that over. Only the user's
    own recipes, and shipped ones, may have such links. Raises RecipeError.
    """
    own = [place.resolve() for name in (BUILDERS, WORKLOADS) for place in own_places(name)]
    if not any(path.is_relative_to(place) for place in own) and not path.resolve().is_relative_to(top.resolve()):
        raise RecipeError(
            f"{path}: is a link to a file outside of {top}, {path.resolve()}.",
            f"Copy that file; only recipes in {config_folder()} may have such links.",
        )
    return path


def own_places(name: str) -> list[Path]:
    """Where recipes need not be named to be used: the user's configuration folder, and what is shipped."""
    return [config_folder() / name, *(folder / name for folder in SHIPPED)]


def working_directory(name: str) -> tuple[Path | None, str]:
    """The folder or file ``name`` of the working directory, and why it does not count.

    Recipes are commands, and a hosts.toml says where they run. In a checkout they are the author's of the repository,
    which is measured but not trusted; below /tmp they may be anyone's. So they do not count in a git repository,
    nor when they belong to another user. Both are empty when the working directory has no such recipes.
    """
    try:
        place = Path.cwd() / name
        if not (any(place.glob(CONTENTS[name])) if name in CONTENTS else place.is_file()):
            return None, ""
        if is_own(place, name):
            return None, ""  # as in a checkout of perfbisect
        if repository := enclosing_repository(place.parent):
            return place, f"the working directory is in the git repository {repository}"
        if {place.stat().st_uid, place.lstat().st_uid} != {os.geteuid()}:
            return place, "it belongs to another user"
    except OSError:  # a working directory that was removed, or cannot be read
        return None, ""
    return place, ""


def enclosing_repository(folder: Path) -> Path | None:
    """The git repository that an absolute folder is in, with or without working tree, of any owner.

    No git command runs. ``.git`` is a file in a submodule and in a linked working tree.
    """
    for place in (folder, *folder.parents):
        if _may_exist(place / ".git") or all(_may_exist(place / part) for part in BARE):
            return place
    return None


def _may_exist(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # what cannot be read may exist
        return True
    return True


CONFIGURATION = "config.toml"
LEAST = 16  # bytes of a key
SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([kMGT]?)(i?)"
URL = r"[a-z][a-z0-9+.-]*://"

Remote = Annotated[str, matching(rf"^(none|{URL}[^\s|$]+)?\Z", 'an address such as "redis://cache:6379", or "none"')]
Size = Annotated[str, matching(rf"^{SIZE}\Z", 'a size such as "20G"')]
Place = Annotated[
    str, matching(rf"^(~?/|{URL})[^\s]+\Z", 'an absolute path, or an address such as "s3://bucket/builds"')
]


def in_bytes(size: str) -> int:
    """Bytes of a size as ccache reads it: 20G is 20 × 10⁹, 20Gi is 20 × 2³⁰, and a bare number means G.

    Raises ValueError for anything else.
    """
    found = re.fullmatch(SIZE, size)
    if not found:
        raise ValueError(f"not a size: {size!r}")
    power = "kMGT".index(found[2] or "G") + 1
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


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
        where = place_of_configuration().at("shared", "key_file")
        try:
            secret, mode = file.read_bytes().strip(), file.stat().st_mode
        except OSError as error:
            raise where.mistake(f"cannot be read: {error.strerror}: {file}.") from error
        if mode & 0o077:
            raise where.mistake("can be read by other users.", f"chmod 600 {file}")
        if len(secret) < LEAST:
            raise where.mistake(f"has fewer than {LEAST} characters.", f"openssl rand -hex 32 >{file}")
        return secret


class CentralHistory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The central history of a team, to which each session of this user is pushed."""

    address: Annotated[
        str, matching(r"^(postgres(ql)?://\S+)?\Z", 'an address such as "postgresql://HOST/DATABASE"')
    ] = ""
    origin: Annotated[str, matching(r"^[A-Za-z0-9_.@-]{0,64}\Z", "a name of letters, digits and . _ @ -")] = ""


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user has set."""

    notify: str = ""  # the default of --notify
    shared: Shared = Shared()
    central: CentralHistory = CentralHistory()


def load_configuration() -> Configuration:
    """The user's settings; the defaults without a file. Raises RecipeError for a mistake in it."""
    place = place_of_configuration()
    return convert(read_table(place.file), Configuration, place) if place.file.exists() else Configuration()


def place_of_configuration() -> Location:
    return Location(config_folder() / CONFIGURATION)


def configured_address() -> str:
    """The address of the central history. Raises UsageError where none is configured."""
    if not (address := load_configuration().central.address):
        raise UsageError(
            f"{place_of_configuration().file} names no central history.",
            'Give its address, or write there: [central] address = "postgresql://HOST/DATABASE"',
        )
    return address


def words(command: str) -> tuple[str, ...]:
    """The arguments of a command, split as a shell splits them; no shell is involved. None for an empty text.

    Raises ValueError, with what is wrong, where the quotes do not match or no such program exists.
    """
    found = tuple(shlex.split(command))
    if found and shutil.which(found[0]) is None:
        raise ValueError(f"there is no program {found[0]}")
    return found


def found_in(folders: Iterable[Path], file: str) -> dict[str, Path]:
    """Name → file of every recipe in these folders, the first folder having precedence."""
    found: dict[str, Path] = {}
    for folder in folders:
        for recipe in sorted(folder.glob(f"*/{file}")):
            found.setdefault(recipe.parent.name, recipe)
    return found


def chosen(noun: str, name: str, things: Mapping[str, Thing], whose: str = "") -> Thing:
    """The thing of that name. Raises RecipeError, with the most similar name, where there is none; ``whose`` follows the noun."""
    if name not in things:
        raise RecipeError(
            f"There is no {noun} '{name}'{whose}.{hint(name, things)}",
            f"{noun.capitalize()}s{whose}: {listed(things)}." if things else f"There are no {noun}s at all.",
        )
    return things[name]


def is_own(path: Path, name: str) -> bool:
    """Whether a path is one of ``own_places``."""
    return path.resolve() in [place.resolve() for place in own_places(name)]
