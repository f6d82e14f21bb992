"""What a user gets wrong: one clear sentence, the right exit status, nothing begun."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import Settings
from perfbisect.host.lock import hold
from perfbisect.host.registry import connect
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.setup import HuntSetup
from perfbisect.recipes.inventory import load_host
from program import PROGRAM

pytestmark = pytest.mark.tools  # starts git, and looks for everything a hunt needs

Exits = Callable[..., str]


@pytest.fixture
def repo(git: Callable[..., str], tmp_path: Path) -> Path:
    """Three commits of a text file, tagged v1.0, v1.1 and v1.2."""
    folder = tmp_path / "repo"
    for number in range(3):
        (folder / "file.c").write_text(f"int x = {number};\n")
        git("add", "-A")
        git("commit", "-qm", f"commit {number}")
        git("tag", f"v1.{number}")
    return folder


def hunt(repo: Path, good: str, bad: str, **options: str) -> list[str]:
    """Arguments of a hunt in ``repo`` that would be possible."""
    chosen = {"builder": "demo", "workload": "update-index", "repo": str(repo)} | options
    return ["run", good, bad, *(word for name, value in chosen.items() for word in (f"--{name}", value))]


def test_unknown_revision(exits: Exits, repo: Path) -> None:
    said = exits(3, *hunt(repo, "v1.0", "v1.9"))
    assert "v1.9" in said
    assert "v1.2" in said or "v1.1" in said  # the nearest that exist


@pytest.mark.parametrize("odd", ["--upload-pack=x", "a b", "$(touch x)", "'", "v1.0;ls", "..", "HEAD~99"])
def test_odd_revision_names_are_only_unknown(exits: Exits, repo: Path, odd: str) -> None:
    args = hunt(repo, "v1.0", "v1.1")[3:]
    said = exits(3, "run", *args, "--", "v1.0", odd)
    assert odd in said
    assert not (repo / "x").exists()


def test_good_and_bad_swapped(exits: Exits, repo: Path) -> None:
    said = exits(3, *hunt(repo, "v1.2", "v1.0"))
    assert "swap" in said


def test_equal_ends(exits: Exits, repo: Path) -> None:
    said = exits(3, *hunt(repo, "v1.1", "v1.1"))
    assert "same commit" in said


def test_not_a_repository(exits: Exits, tmp_path: Path) -> None:
    said = exits(3, *hunt(tmp_path / "nothing", "a", "b"))
    assert "nothing" in said


def test_shallow_clone(exits: Exits, repo: Path, git: Callable[..., str], tmp_path: Path) -> None:
    git("clone", "-q", "--depth=1", f"file://{repo}", str(tmp_path / "shallow"), cwd=tmp_path)
    said = exits(3, *hunt(tmp_path / "shallow", "v1.0", "v1.2"))
    assert "--unshallow" in said


@pytest.mark.parametrize(
    ("option", "wrong", "nearest"),
    [("builder", "demoo", "demo"), ("workload", "update-indx", "update-index"), ("host", "locl", "local")],
)
def test_unknown_names_say_the_nearest(exits: Exits, repo: Path, option: str, wrong: str, nearest: str) -> None:
    said = exits(3, *hunt(repo, "v1.0", "v1.1", **{option: wrong}))
    assert wrong in said
    assert nearest in said


def test_typo_in_a_recipe_key(exits: Exits, repo: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "builders" / "mine"
    recipe.mkdir(parents=True)
    (recipe / "builder.toml").write_text(
        'summary = "mine"\ndriver = "demo"\n[build]\ncompil = [["make"]]\nartifacts = []\n'
    )
    said = exits(3, *hunt(repo, "v1.0", "v1.1", builder="mine", builders=str(tmp_path / "builders")))
    for part in ("builder.toml", "compil", "compile"):
        assert part in said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max-time", "soon"),
        ("confidence", "150%"),
        ("confidence", "99.9%"),
        ("metric", "speed"),
        ("direction", "down"),
        ("set", "batch"),
        ("set", "batch=x"),
    ],
)
def test_wrong_option_values(exits: Exits, repo: Path, option: str, value: str) -> None:
    said = exits(3, *hunt(repo, "v1.0", "v1.1", **{option: value}))
    assert value in said


def test_an_arg_that_the_workload_does_not_have(exits: Exits, repo: Path) -> None:
    said = exits(3, *hunt(repo, "v1.0", "v1.1", set="tablesize=5"))
    assert "demo/update-index has no arg 'tablesize' to set. Did you mean 'table-size'" in said


def test_unknown_verb_says_the_nearest(exits: Exits) -> None:
    said = exits(3, "histroy")
    assert "history" in said


@pytest.mark.parametrize("verb", ["show", "resume"])
def test_no_history_yet(exits: Exits, verb: str) -> None:
    said = exits(3, verb)
    assert said.startswith("Error: ")


@pytest.mark.parametrize(
    "words",
    [["history", "--history"], ["query", "select 1", "--history"], ["resume", "--history"], ["history", "import"]],
)
def test_a_history_that_is_a_fifo(words: list[str], tmp_path: Path) -> None:
    """SQLite would wait for its other end, and no signal would end that."""
    fifo = tmp_path / "history.db"
    os.mkfifo(fifo)
    refused = subprocess.run([*PROGRAM, *words, str(fifo)], capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 3
    assert f"{fifo} cannot be opened: it is not a regular file" in refused.stderr


def test_a_missing_tool_is_named_with_its_package(
    exits: Exits, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PATH that holds everything but sysbench."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            link = tools / program.name
            if program.name != "sysbench" and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tools))
    said = exits(4, *hunt(repo, "v1.0", "v1.2"))
    assert "sysbench" in said
    assert "apt-get install" in said


def test_a_busy_host_is_reported_before_anything_is_begun(exits: Exits, repo: Path, seal: Path) -> None:
    with hold(connect(load_host("local")), "a hunt of another session"):
        said = exits(4, *hunt(repo, "v1.0", "v1.2"))
    assert "a hunt of another session" in said
    assert not list(seal.rglob("history.db"))


@pytest.mark.parametrize(
    ("builds", "workload", "said"),
    [
        (["v1.0"], "scan", ["at least two builds", "bisect noise"]),
        (["v1.0", "v1.1", "v1.0"], "scan", ["v1.0 is given twice"]),
        (["v1.0", "old=empty", "old=other"], "scan", ["old is given twice"]),
        (["v1.0", "v1.9"], "scan", ["v1.9", "v1.1"]),
        (["v1.0", "old=nothing"], "scan", ["no folder", "nothing", "NAME=PATH"]),
        (["v1.0", "old=nothing.tar.xz"], "scan", ["no file", "nothing.tar.xz"]),
        (["v1.0", "=empty"], "scan", ["has no name"]),
        (["v1.0", "old="], "scan", ["has no path"]),
        (["v1.0", "old=empty"], "scan", ["empty is no installed demo", "lib/libdemo.so"]),
        (["v1.0", "old=text.tar.gz"], "scan", ["text.tar.gz is damaged"]),
        (["v1.0", "v1.1"], "scn", ["no workload and no group 'scn'", "'scan'", "Groups: point"]),
        (["v1.0", "v1.1"], "write,demo/scn", ["demo/scn", "demo/scan"]),
        (["v1.0", "v1.1"], ",", ["--workload is empty"]),
    ],
)
def test_what_cannot_be_compared(
    exits: Exits, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    builds: list[str], workload: str, said: list[str],
) -> None:  # fmt: skip
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "text.tar.gz").write_text("no tarball")
    monkeypatch.chdir(tmp_path)
    told = exits(3, "compare", *builds, "--builder", "demo", "--workload", workload, "--repo", str(repo))
    for part in said:
        assert part in told


def test_a_tree_without_a_build_system(exits: Exits, repo: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "builders" / "served"
    recipe.mkdir(parents=True)
    (recipe / "builder.toml").write_text('summary = "says nothing of builds"\ndriver = "demo"\n')
    mine = {"builder": "served", "builders": str(tmp_path / "builders")}
    for words in (hunt(repo, "v1.0", "v1.1", **mine), ["noise", *hunt(repo, "", "", **mine)[3:], "--rev", "v1.0"]):
        said = exits(3, *words)
        assert "v1.0 cannot be built: its tree has no build system: none of Cargo.toml, CMakeLists.txt" in said
        assert "--build, or in a recipe's [build]" in said


@pytest.mark.parametrize("wrong", ["x3", "c", "3c", "-1", "c99999999999999999999"])
def test_an_id_that_is_none(exits: Exits, wrong: str) -> None:
    said = exits(3, "show", "--", wrong)
    assert "is not an id" in said


def test_a_suspicion_that_meets_no_commit_is_said(repo: Path) -> None:
    asked = Settings(
        good="v1.0", bad="v1.2", repository=str(repo), builder="demo", workload="update-index", host="local",
        suspects={"storage/innodb/**": 4.0, "file.c": 2.0},
    )  # fmt: skip
    said = [
        warning.text for warning in HuntSetup.set_up([resolve_settings(asked)])[0].warnings if "suspect" in warning.text
    ]
    assert said == ["No commit of the range touches storage/innodb/**, which you suspect"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "--builder is missing"),
        ("--builder demo", "--workload is missing"),
        ("--build make", "--build needs a command"),
        ("--builder demo --workload scan --rate (x)", "--rate needs a command"),
        ("--run ./b --workload scan", "--workload and --run exclude each other"),
        ("--run ./b --builder demo --build make", "--builder and --build exclude each other"),
        ("--run", "requires an argument"),
        ("--run ./b'", '--run "./b\'" cannot be split into words'),
        ("--run ./b --build m\\", "cannot be split into words"),
        ("--run ./b --rate x", '`rate` is "x", which has no groups'),
        ("--run ./b --cost x(", '`cost` is "x(", which is not a regular expression'),
        ("--run ./b --rate $.", '`rate` is "$.", which is not a path into JSON'),
        ("--run ./b --rate (x) --cost (y)", "both a rate and a cost"),
        ("--run ./{b}", "unknown placeholder {b}"),
        ("--run ./b --time 5", "--time would change nothing"),
        ("--run ./b --metric rate", "No pattern finds a rate"),
        ("--run ./b --metric ops", "There is no metric 'ops'"),
        ("--run ./b --variant fast", "has no variant 'fast'"),
        ("--run ./b --set time=abc", "time has an option of its own: --time abc"),
    ],
)
def test_commands_that_cannot_be_meant(exits: Exits, repo: Path, seal: Path, options: str, sentence: str) -> None:
    said = exits(3, "run", "v1.0", "v1.2", "--repo", str(repo), *options.split())
    assert sentence in said
    assert not list(seal.rglob("history.db"))


def test_a_command_needs_a_repository(exits: Exits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = exits(3, "run", "v1.0", "v1.2", "--run", "./b")
    assert "is not a git repository" in said
