"""The user's folders stay where they are: as XDG_* say, and below the home folder without them."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure
from perfbisect.folders import cache_folder, config_folder, state_folder

FOLDERS = [
    (config_folder, "XDG_CONFIG_HOME", ".config"),
    (state_folder, "XDG_STATE_HOME", ".local/state"),
    (cache_folder, "XDG_CACHE_HOME", ".cache"),
]


@pytest.mark.parametrize(("folder", "variable", "default"), FOLDERS)
def test_where_it_is(
    folder: Callable[[], Path], variable: str, default: str, seal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder() == seal / default / "perfbisect"
    monkeypatch.setenv(variable, "")
    assert folder() == seal / default / "perfbisect"
    monkeypatch.setenv(variable, "/elsewhere")
    assert folder() == Path("/elsewhere/perfbisect")


@pytest.mark.parametrize(("folder", "variable", "default"), FOLDERS)
def test_without_home(folder: Callable[[], Path], variable: str, default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home folder is the one of the user database; without an entry there, only XDG_* name a folder."""
    monkeypatch.delenv("HOME")
    assert folder() == Path(pwd.getpwuid(os.getuid()).pw_dir, default, "perfbisect")

    def no_entry(_user: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    with pytest.raises(EnvironmentFailure, match="home folder of this user is unknown"):
        folder()
    monkeypatch.setenv(variable, "/elsewhere")
    assert folder() == Path("/elsewhere/perfbisect")
