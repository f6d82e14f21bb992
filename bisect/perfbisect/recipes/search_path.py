"""Where recipes are searched: in a folder given by option, the user's configuration folder, the recipes of perfbisect.

Those of the working directory count only as the default of an option: see ``working_directory``. So a hunt keeps the
folder that it began with, and nothing below this module depends on the working directory.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from perfbisect.errors import RecipeError, UsageError
from perfbisect.folders import config_folder

PACKAGE = Path(__file__).parents[1]
SHIPPED = (PACKAGE, PACKAGE.parents[1])  # recipes are in the installed package, or at the top of a checkout

BUILDERS, WORKLOADS, HOSTS = "builders", "workloads", "hosts.toml"
CONTENTS = {BUILDERS: "*/builder.toml", WORKLOADS: "*/suite.toml"}
BARE = ("HEAD", "objects", "refs")  # what makes a folder a bare git repository


def recipe_folders(recipe_type: str, given: str | Path = "") -> list[Path]:
    """The folders with recipes of ``recipe_type`` ("builders", "workloads"); the first has precedence.

    Raises UsageError when the folder ``given`` by the user does not exist.
    """
    if given and not Path(given).is_dir():
        raise UsageError(
            f"There is no folder {given}.", f"--{recipe_type} takes a folder with one folder for each recipe."
        )
    return _existing([Path(given)] if given else [], own_places(recipe_type))


def inventory_files(given: str | Path = "") -> list[Path]:
    """The inventories of hosts; the first has precedence.

    Raises UsageError when the file ``given`` by the user does not exist.
    """
    if given and not Path(given).is_file():
        raise UsageError(f"There is no file {given}.", "--hosts takes a file such as hosts.toml.")
    return _existing([Path(given)] if given else [], own_places(HOSTS))


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


def _existing(*places: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(place.resolve() for some in places for place in some if place.exists()))


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
        if place.resolve() in _existing(own_places(name)):
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
