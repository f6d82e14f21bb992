"""The user's folders for configuration, history and cached files: ~/.config, ~/.local/state and ~/.cache, or the
folders that the XDG_* variables name.
"""

from pathlib import Path

from perfbisect.errors import EnvironmentFailure


def config_folder() -> Path:
    """The folder with the user's recipes and hosts.toml. Raises EnvironmentFailure if the home folder is unknown."""
    return _folder("config")


def state_folder() -> Path:
    """The folder with the history and error reports. Raises EnvironmentFailure if the home folder is unknown."""
    return _folder("state")


def cache_folder() -> Path:
    """The folder with files that can be made again, such as clones. Raises EnvironmentFailure if the home folder is
    unknown.
    """
    return _folder("cache")


def _folder(purpose: str) -> Path:
    from platformdirs import PlatformDirs  # imported when used, so that `bisect --help` answers at once

    try:
        return Path(getattr(PlatformDirs("perfbisect"), f"user_{purpose}_dir"))
    except RuntimeError as error:  # neither HOME nor the user database names a home folder
        advice = f"Set HOME or XDG_{purpose.upper()}_HOME."
        raise EnvironmentFailure("The home folder of this user is unknown.", advice) from error
