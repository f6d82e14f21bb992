"""The search path of recipes: the working directory, the user's configuration folder, the recipes of perfbisect."""

from collections.abc import Sequence
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.folders import config_folder

PACKAGE = Path(__file__).parents[1]
SHIPPED = (PACKAGE, PACKAGE.parents[1])  # recipes are in the installed package, or at the top of a checkout


def recipe_folders(recipe_type: str, given: str | Path = "") -> list[Path]:
    """The folders with recipes of ``recipe_type`` ("builders", "workloads"); the first has precedence.

    Raises UsageError when the folder ``given`` by the user does not exist.
    """
    if given and not Path(given).is_dir():
        raise UsageError(
            f"There is no folder {given}.", f"--{recipe_type} takes a folder with one folder for each recipe."
        )
    return _existing(recipe_type, given)


def inventory_files(given: str | Path = "") -> list[Path]:
    """The inventories of hosts; the first has precedence.

    Raises UsageError when the file ``given`` by the user does not exist.
    """
    if given and not Path(given).is_file():
        raise UsageError(f"There is no file {given}.", "--hosts takes a file such as hosts.toml.")
    return _existing("hosts.toml", given)


def _existing(name: str, given: str | Path) -> list[Path]:
    places: Sequence[Path] = (Path.cwd() / name, config_folder() / name, *(folder / name for folder in SHIPPED))
    wanted = (Path(given), *places) if given else places
    return list(dict.fromkeys(location.resolve() for location in wanted if location.exists()))
