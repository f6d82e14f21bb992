"""Reads the user's configuration folder, which contains the file ``config.toml``; and determines the folders in which
recipes are searched for.

Recipes are searched for in a folder that an option names, then in the configuration folder, then among the recipes that
belong to perfbisect. Recipes in the working directory are not used, except as the default of an option: see
``recipes_in_working_directory``. So a resumed hunt uses the recipe folder with which the hunt began, even in another
working directory. Only the ``config.toml`` of the configuration folder is used, because perfbisect executes commands of
this file, and files of a cloned repository must not be able to provide commands.
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
from perfbisect.recipes.toml import (
    Location,
    convert_table,
    read_table,
    similar_words_hint,
    sorted_list,
    text_constraint,
)

Item = TypeVar("Item")
PACKAGE = Path(__file__).parents[1]
SHIPPED = (PACKAGE, PACKAGE.parents[1])  # recipes are in the installed package, or at the top of a checkout

BUILDERS, WORKLOADS, HOSTS = "builders", "workloads", "hosts.toml"
CONTENTS = {BUILDERS: "*/builder.toml", WORKLOADS: "*/suite.toml"}
BARE = ("HEAD", "objects", "refs")  # a folder with all these entries is a bare git repository


def recipe_folders(name: str, user_path: str | Path = "") -> list[Path]:
    """The folders in which recipes of the kind ``name`` (BUILDERS or WORKLOADS) are searched for, or, if ``name`` is
    HOSTS, the paths of the files that list hosts. The first folder or file has precedence.

    Raises UsageError if ``user_path``, a path that the user gave, does not exist.
    """
    kind, exists = ("file", Path.is_file) if name == HOSTS else ("folder", Path.is_dir)
    if user_path and not exists(Path(user_path)):
        takes = "a file such as hosts.toml" if name == HOSTS else "a folder that has a subfolder for each recipe"
        raise UsageError(f"The {kind} {user_path} does not exist.", f"Give --{name.partition('.')[0]} {takes}.")
    places = [*([Path(user_path)] if user_path else []), *trusted_recipe_folders(name)]
    return list(dict.fromkeys(folder.resolve() for folder in places if folder.exists()))


def checked_within_folder(path: Path, recipe_folder: Path) -> Path:
    """Returns ``path``, a file of a recipe, after a check of its symbolic links: ``path`` must lead to a file in
    ``recipe_folder``, in which the recipe was found.

    Files of a recipe are sent to hosts, so a recipe of another author could send any file of this user by a link. Links
    to files outside of the folder are allowed only in the user's own recipes and in perfbisect's recipes. Raises
    RecipeError for such a link in another recipe.
    """
    own_folders = [folder.resolve() for name in (BUILDERS, WORKLOADS) for folder in trusted_recipe_folders(name)]
    if not any(path.is_relative_to(folder) for folder in own_folders) and not path.resolve().is_relative_to(
        recipe_folder.resolve()
    ):
        raise RecipeError(
            f"{path} is a link to {path.resolve()}, a file outside {recipe_folder}.",
            f"Copy the file into the folder of the recipe. Only recipes in {config_folder()} may have links to other folders.",
        )
    return path


def trusted_recipe_folders(name: str) -> list[Path]:
    """The folders whose recipes perfbisect trusts: the user's configuration folder, and perfbisect's own folders."""
    return [config_folder() / name, *(folder / name for folder in SHIPPED)]


def recipes_in_working_directory(name: str) -> tuple[Path | None, str]:
    """The path of the recipe folder or hosts file ``name`` in the working directory, and a reason why it is not used
    ("" if it is used).

    Recipes contain commands that perfbisect executes, and a hosts.toml names the hosts on which these commands run. The
    author of a repository has written the recipes in a checkout of it, and perfbisect does not trust this author. Any
    user may have written recipes below /tmp. Therefore recipes in the working directory are not used if this directory
    is in a git repository, or if the recipes belong to another user. The result is (None, "") if the working directory
    contains no recipes, or if its recipes are perfbisect's own recipes.
    """
    try:
        entry = Path.cwd() / name
        if not (any(entry.glob(CONTENTS[name])) if name in CONTENTS else entry.is_file()):
            return None, ""
        if is_trusted_path(entry, name):
            return None, ""  # for instance the folder of perfbisect itself, in a checkout of perfbisect
        if repository := enclosing_repository(entry.parent):
            return (
                entry,
                f"the current folder is in the git repository {repository}, whose recipes could run commands of its authors",
            )
        if {entry.stat().st_uid, entry.lstat().st_uid} != {os.geteuid()}:
            return entry, "the path belongs to another user"
    except OSError:  # the working directory was removed, or cannot be read
        return None, ""
    return entry, ""


def enclosing_repository(folder: Path) -> Path | None:
    """The git repository that contains the folder, which is an absolute path; None if no repository contains it. The
    repository may be bare, and may belong to any user.

    No git command is run. The function also finds submodules and linked working trees, in which ``.git`` is a file.
    """
    for candidate in (folder, *folder.parents):
        if _may_exist(candidate / ".git") or all(_may_exist(candidate / part) for part in BARE):
            return candidate
    return None


def _may_exist(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a path that cannot be read may exist
        return True
    return True


CONFIGURATION = "config.toml"
LEAST = 16  # fewest bytes of a key
SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([kMGT]?)(i?)"
URL = r"[a-z][a-z0-9+.-]*://"

Remote = Annotated[
    str, text_constraint(rf"^(none|{URL}[^\s|$]+)?\Z", 'an address such as "redis://cache:6379", or "none"')
]
Size = Annotated[str, text_constraint(rf"^{SIZE}\Z", 'a size such as "20G"')]
StorePlace = Annotated[
    str, text_constraint(rf"^(~?/|{URL})[^\s]+\Z", 'an absolute path, or an address such as "s3://bucket/builds"')
]


def size_in_bytes(size: str) -> int:
    """The number of bytes that a size in ccache's notation means: 20G is 20 × 10⁹, 20Gi is 20 × 2³⁰, and the unit of a
    number without unit is G.

    Raises ValueError for anything else.
    """
    match = re.fullmatch(SIZE, size)
    if not match:
        raise ValueError(f"not a size: {size!r}")
    power = "kMGT".index(match[2] or "G") + 1
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The stores that this user shares with other users: a store of finished builds, and the remote store of ccache."""

    builds: StorePlace | None = None  # store of finished builds
    key_file: str = ""  # file with the secret by which builds are signed and checked
    keep: Size = "500G"  # size to which `bisect gc --shared` shrinks the store
    ccache: Remote = ""  # remote store of ccache for hosts without `ccache_remote`

    def secret(self) -> bytes:
        """The secret key in the file ``key_file``; b"" if the configuration names no file.

        Raises RecipeError if this user cannot read the file, if other users can read the file, or if it is too short.
        """
        if not self.key_file:
            return b""
        file = Path(self.key_file).expanduser()
        where = configuration_location().at("shared", "key_file")
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
    """The settings of the central history of a team, to which each session of this user is pushed."""

    address: Annotated[
        str, text_constraint(r"^(postgres(ql)?://\S+)?\Z", 'an address such as "postgresql://HOST/DATABASE"')
    ] = ""
    origin: Annotated[str, text_constraint(r"^[A-Za-z0-9_.@-]{0,64}\Z", "a name of letters, digits and . _ @ -")] = ""


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's settings."""

    notify: str = ""  # the default of --notify
    shared: Shared = Shared()
    central: CentralHistory = CentralHistory()


def load_configuration() -> Configuration:
    """The user's settings in ``config.toml``; the default settings if this file does not exist. Raises RecipeError if
    the file has a mistake."""
    location = configuration_location()
    return (
        convert_table(read_table(location.file), Configuration, location) if location.file.exists() else Configuration()
    )


def configuration_location() -> Location:
    return Location(config_folder() / CONFIGURATION)


def required_central_address() -> str:
    """The address of the central history. Raises UsageError if no address is configured."""
    if not (address := load_configuration().central.address):
        raise UsageError(
            f"The file {configuration_location().file} has no address of a central history.",
            'Give the address in the command, or add to section [central] of the file: address = "postgresql://HOST/DATABASE"',
        )
    return address


def split_command(command: str) -> tuple[str, ...]:
    """The program and the arguments of a command, split by the rules of a shell; empty for an empty text. No shell is
    run.

    Raises ValueError, with the reason, if quotes do not match or the program does not exist.
    """
    arguments = tuple(shlex.split(command))
    if arguments and shutil.which(arguments[0]) is None:
        raise ValueError(f"the program {arguments[0]} does not exist")
    return arguments


def recipe_files_by_name(folders: Iterable[Path], file_name: str) -> dict[str, Path]:
    """Maps the name of each recipe in ``folders`` to its file. If several folders have a recipe of the same name, the
    first folder has precedence."""
    files: dict[str, Path] = {}
    for folder in folders:
        for recipe in sorted(folder.glob(f"*/{file_name}")):
            files.setdefault(recipe.parent.name, recipe)
    return files


def item_by_name(noun: str, name: str, items: Mapping[str, Item], whose: str = "") -> Item:
    """The item with a name.

    Raises RecipeError for an unknown name; the message contains the most similar known name. ``whose`` is a phrase that
    follows ``noun`` in the message.
    """
    if name not in items:
        why = f"There is no {noun} '{name}'{whose}.{similar_words_hint(name, items)}"
        raise RecipeError(why, f"{noun.capitalize()}s{whose}: {sorted_list(items)}." if items else f"No {noun}s exist.")
    return items[name]


def is_trusted_path(path: Path, name: str) -> bool:
    """Whether a path is equal to one of ``trusted_recipe_folders``."""
    return path.resolve() in [folder.resolve() for folder in trusted_recipe_folders(name)]
