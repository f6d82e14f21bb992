"""The shipped program: a wheel with every recipe, help with examples for each verb, and the folders of the user."""

import os
import pwd
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import pytest

from perfbisect.cli.main import VERBS, bisect
from perfbisect.errors import EnvironmentFailure
from perfbisect.folders import cache_folder, config_folder, state_folder

ROOT = Path(__file__).parents[1]


HOME = os.environ.get("HOME", "")  # has the configuration and cache of pip; tests run with another, empty HOME
OLDEST_AND_OTHERS = [
    pytest.param("python3.11", marks=pytest.mark.slow),
    *(pytest.param(f"python3.{minor}", marks=pytest.mark.calibrate) for minor in (12, 13)),
]


def interpreter(name: str) -> str | None:
    """The Python of this name, from the PATH or from pyenv, if it can make virtual environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path(HOME, ".pyenv"))
    built = pyenv.glob(f"versions/{name.removeprefix('python')}.*/bin/{name}")
    for each in (name, *map(str, sorted(built))):
        with suppress(OSError):
            if subprocess.run([each, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0:
                return each
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    [built] = folder.glob("*.whl")
    return built


@pytest.mark.tools
def test_wheel_contains_every_recipe_and_source_file(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    expected = {
        f"perfbisect/{name.removeprefix('bisect/perfbisect/')}"
        for name in listed
        if name.startswith(("bisect/perfbisect/", "builders/", "workloads/")) or name == "hosts.toml"
    }
    assert expected
    assert expected <= shipped


@pytest.mark.tools
@pytest.mark.parametrize("python", OLDEST_AND_OTHERS)
def test_installed_wheel_finds_a_culprit(python: str, wheel: Path, tmp_path: Path, git: Callable[..., str]) -> None:
    """A new environment of each supported Python has only the packages that the wheel requires."""
    program = interpreter(python)
    if program is None:
        pytest.skip(f"no {python} with venv: apt-get install {python}-venv, where the distribution has it")
    env = {"HOME": HOME, "PATH": os.environ["PATH"]}
    subprocess.run([program, "-m", "venv", tmp_path / "venv"], check=True, capture_output=True, env=env)
    pip = [tmp_path / "venv/bin/pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True, capture_output=True, env=env)

    def bisect(*words: str, errors: str = "") -> str:
        command = [tmp_path / "venv/bin/bisect", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path / "repo")
        assert (done.returncode, done.stderr[: len(errors)], done.stderr.count("\n")) == (0, errors, bool(errors)), done
        return done.stdout

    assert "bisect run" in bisect("--help")
    assert "postgres" in bisect("builders")
    for number in range(4):
        (tmp_path / "repo" / "bench.sh").write_text(f"echo rate {50 if number > 1 else 100} # {number}\n")
        git("add", ".")
        git("commit", "-qm", f"change {number}")
    hunted = bisect(
        "run", "HEAD~3", "HEAD", "--build", "true", "--run", "sh bench.sh", "--rate", r"rate (\d+)",
        "--no-explain", "--plain", errors="3 commits, 3 candidates; ",
    )  # fmt: skip
    assert f"The culprit is {git('rev-parse', '--short=10', 'HEAD~1')}" in hunted


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_examples(verb: str) -> None:
    command = bisect.get_command(click.Context(bisect), verb)
    assert command is not None
    assert command.help
    assert f"bisect {verb}" in (command.epilog or "")


def test_shipped_files_contain_no_path_of_a_developer_machine() -> None:
    found = subprocess.run(
        ["git", "grep", "-nIE", r"(^|[^A-Za-z0-9_.])/(work|root|home/[a-z]+)/", "--", ".", ":!tests"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert found == ""


FOLDERS = [
    (config_folder, "XDG_CONFIG_HOME", ".config"),
    (state_folder, "XDG_STATE_HOME", ".local/state"),
    (cache_folder, "XDG_CACHE_HOME", ".cache"),
]


@pytest.mark.parametrize(("folder", "variable", "default"), FOLDERS)
def test_folders_of_the_user_follow_xdg_variables(
    folder: Callable[[], Path], variable: str, default: str, seal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without XDG_* variables, folders are below $HOME, else below the home folder in the user database."""
    assert folder() == seal / default / "perfbisect"
    monkeypatch.setenv(variable, "")
    assert folder() == seal / default / "perfbisect"
    monkeypatch.delenv("HOME")
    assert folder() == Path(pwd.getpwuid(os.getuid()).pw_dir, default, "perfbisect")

    def no_entry(_user: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    with pytest.raises(EnvironmentFailure, match="home folder of this user is unknown"):
        folder()
    monkeypatch.setenv(variable, "/elsewhere")
    assert folder() == Path("/elsewhere/perfbisect")
