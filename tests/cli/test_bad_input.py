"""What a user gets wrong: one clear sentence, the right exit status, nothing begun."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.cli.main import HABITS, VERBS
from perfbisect.cli.options.param_types import ARG, MINUTES, UNSPLIT
from perfbisect.cli.serving.guard import private
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.host.lock import hold
from perfbisect.host.registry import connect
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.setup import HuntSetup
from perfbisect.lab.build.known_errors import known_error
from perfbisect.recipes.inventory import load_host
from perfbisect.repository.discovery import open_repository
from program import PROGRAM, exits

pytestmark = pytest.mark.tools  # starts git, and looks for everything a hunt needs


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


def hunt(repo: Path, good: str = "v1.0", bad: str = "v1.1", **options: str) -> list[str]:
    """Arguments of a hunt in ``repo`` that would be possible."""
    chosen = {"builder": "demo", "workload": "update-index", "repo": str(repo)} | options
    return ["run", *(word for name, value in chosen.items() for word in (f"--{name}", value)), "--", good, bad]


def test_ends_that_are_none(repo: Path, git: Callable[..., str], tmp_path: Path) -> None:
    """Odd names of revisions are only unknown."""
    said = exits(3, *hunt(repo, "v1.0", "v1.9"))
    assert "v1.9" in said and "v1.1" in said  # the nearest that exists
    for odd in ("--upload-pack=x", "a b", "$(touch x)", "'", "v1.0;ls", "..", "HEAD~99"):
        assert odd in exits(3, *hunt(repo, "v1.0", odd))
    assert not (repo / "x").exists()
    assert "swap" in exits(3, *hunt(repo, "v1.2", "v1.0"))
    assert "same commit" in exits(3, *hunt(repo, "v1.1", "v1.1"))
    assert "nothing" in exits(3, *hunt(tmp_path / "nothing", "a", "b"))
    git("clone", "-q", "--depth=1", f"file://{repo}", str(tmp_path / "shallow"), cwd=tmp_path)
    assert "--unshallow" in exits(3, *hunt(tmp_path / "shallow"))


WRONG_OPTIONS = [  # option, value, what is said
    ("builder", "demoo", ["demoo", "'demo'"]),
    ("workload", "update-indx", ["update-indx", "update-index"]),
    ("host", "locl", ["locl", "local"]),
    ("max-time", "soon", ["'soon' is not a duration; write 90s, 45m or 1h30m."]),
    ("max-time", "٣m", ["'٣m' is not a duration"]),
    ("warmup", "nan", ["'nan' is not a number of seconds"]),
    ("warmup", "٣", ["'٣' is not a number of seconds"]),
    ("confidence", "150%", ["150%"]),
    ("confidence", "99.9%", ["'99.9%' is more than 99.5%, the highest probability that a verdict states."]),
    ("metric", "speed", ["speed"]),
    ("direction", "down", ["down"]),
    ("set", "batch", ["'batch' is not an option with its value; write table-size=1000000."]),
    ("set", "batch=x", ["batch=x"]),
    ("set", "tablesize=5", ["demo/update-index has no arg 'tablesize' to set. Did you mean 'table-size'"]),
    (
        "suspect",
        "storage",
        ["'storage' is not a path and a weight from 0.000001 to 1000000; write storage/innobase=4."],
    ),
    ("slow-after", "1", ["'1' is not above 1"]),
    ("slow-after", "nan", ["'nan' is not above 1"]),
    ("slow-after", "inf", ["'inf' is not above 1"]),
    ("slow-after", "5x", ["'5x' is not a number"]),
]
COMMANDS = [
    ("", "--builder is missing"),
    ("--builder demo", "--workload is missing"),
    ("--build make", "--build needs a command"),
    ("--builder demo --workload scan --rate (x)", "--rate needs a command"),
    ("--run ./b --workload scan", "--workload and --run exclude each other"),
    ("--run ./b --builder demo --build make", "--builder and --build exclude each other"),
    ("--run ./b --build make --then ./c", "--build and --then exclude each other"),
    ("--run ./b --slow-after 5 --all", "--slow-after and --all exclude each other"),
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
]


def test_options_of_a_hunt(repo: Path, seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, value, parts in WRONG_OPTIONS:
        said = exits(3, *hunt(repo, **{option: value}))
        assert all(part in said for part in parts), said
    for options, sentence in COMMANDS:
        assert sentence in exits(3, "run", "v1.0", "v1.2", "--repo", str(repo), *options.split())
    monkeypatch.chdir(tmp_path)
    assert "is not a git repository" in exits(3, "run", "v1.0", "v1.2", "--run", "./b")
    assert not list(seal.rglob("history.db"))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "--rate", "", "a", "b"], "--rate"), (["run", "--rate=", "a", "b"], "--rate"), (["resume", ""], "An argument"),
        (["show", "--history", ""], "--history"), (["history", "add", ""], "An argument"),
    ],
)  # fmt: skip
def test_what_is_empty_is_not_absent(words: list[str], what: str) -> None:
    """A variable of a script that is not set."""
    assert f"{what} is empty." in exits(3, *words)


def test_recipes(repo: Path, tmp_path: Path) -> None:
    """With a mistyped key, and without what builds."""
    for name, text in (
        ("mine", 'summary = "mine"\ndriver = "demo"\n[build]\ncompil = [["make"]]\nartifacts = []\n'),
        ("served", 'summary = "says nothing of builds"\ndriver = "demo"\n'),
    ):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "builder.toml").write_text(text)
    said = exits(3, *hunt(repo, builder="mine", builders=str(tmp_path / "mine")))
    assert all(part in said for part in ("builder.toml", "compil", "compile"))
    words = hunt(repo, builder="served", builders=str(tmp_path / "served"))
    for each in (words, ["noise", *words[1:-3], "--rev", "v1.0"]):
        said = exits(3, *each)
        assert "v1.0 cannot be built: its tree has no build system: none of Cargo.toml, CMakeLists.txt" in said
        assert "--build, or in a recipe's [build]" in said


def test_verbs_and_ids() -> None:
    assert "history" in exits(3, "histroy")
    for wrong in ("x3", "c", "3c", "-1", "c99999999999999999999", "١", "c١"):
        assert "is not an id, nor the name of a hunt; write 12 for a hunt, c3 for a comparison" in exits(
            3, "show", "--", wrong
        )
    for verb in ("replay", "prove"):
        assert "'c2' is the id of a comparison; write 12 for a hunt." in exits(3, verb, "c2")


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


def test_a_missing_tool_is_named_with_its_package(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH that holds everything but sysbench."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            link = tools / program.name
            if program.name != "sysbench" and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tools))
    said = exits(4, *hunt(repo))
    assert "sysbench" in said
    assert "apt-get install" in said


def test_a_busy_host_is_reported_before_anything_is_begun(repo: Path, seal: Path) -> None:
    with hold(connect(load_host("local")), "a hunt of another session"):
        assert "a hunt of another session" in exits(4, *hunt(repo))
    assert not list(seal.rglob("history.db"))


NOT_COMPARABLE = [  # builds, workload, what is said
    ("v1.0", "scan", ["at least two builds", "bisect noise"]),
    ("v1.0 v1.1 v1.0", "scan", ["v1.0 is given twice"]),
    ("v1.0 old=empty old=other", "scan", ["old is given twice"]),
    ("v1.0 v1.9", "scan", ["v1.9", "v1.1"]),
    ("v1.0 old=nothing", "scan", ["no folder", "nothing", "NAME=PATH"]),
    ("v1.0 old=nothing.tar.xz", "scan", ["no file", "nothing.tar.xz"]),
    ("v1.0 =empty", "scan", ["has no name"]),
    ("v1.0 old=", "scan", ["has no path"]),
    ("v1.0 old=empty", "scan", ["empty is no installed demo", "lib/libdemo.so"]),
    ("v1.0 old=text.tar.gz", "scan", ["text.tar.gz is damaged"]),
    ("v1.0 v1.1", "scn", ["no workload and no group 'scn'", "'scan'", "Groups: point"]),
    ("v1.0 v1.1", "write,demo/scn", ["demo/scn", "demo/scan"]),
    ("v1.0 v1.1", ",", ["--workload is empty"]),
]


def test_what_cannot_be_compared(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "text.tar.gz").write_text("no tarball")
    monkeypatch.chdir(tmp_path)
    for builds, workload, parts in NOT_COMPARABLE:
        words = [*builds.split(), "--builder", "demo", "--workload", workload, "--repo", str(repo)]
        said = exits(3, "compare", *words)
        assert all(part in said for part in parts), said


def pasted(command: str) -> list[str]:
    """The words that a command has where it is pasted into a shell."""
    argv = ["bash", "-c", f"printf '%s\\0' {command}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


NEEDS_A_SHELL = [  # command, what only a shell understands, what to write in its place
    ("./b > out", ">", "'sh -c \"./b > out\"'"),
    ("./b && ./c", "&&", "'sh -c \"./b && ./c\"'"),
    ("./b | tail", "|", "'sh -c \"./b | tail\"'"),
    ("./b; ./c", ";", "'sh -c \"./b; ./c\"'"),
    ("./b $HOME", "$HOME", "'sh -c \"./b $HOME\"'"),
    ('./b "$HOME"', "$HOME", r"""'sh -c "./b \"$HOME\""'"""),
    ("~/b", "~/", "'sh -c \"~/b\"'"),
    ("./b *.db", "*", "'sh -c \"./b *.db\"'"),
    ("./b 'x y' | tail", "|", r'''"sh -c \"./b 'x y' | tail\""'''),
    (r"./b '!' \\ `c` | tail", "`", r"""'sh -c "./b '"'"'!'"'"' \\\\ `c` | tail"'"""),
    ('sh -c "./b $HOME" >out', ">", r"""'sh -c "sh -c \"./b $HOME\" >out"'"""),
]


ODD = "it's $HOME; `x`"


def hint_of(raises: Callable[[], object]) -> str:
    with pytest.raises((ValueError, PerfBisectError)) as caught:
        raises()
    return f"{caught.value} {getattr(caught.value, 'advice', '')}"


def test_a_command_in_a_hint_is_pasted_as_it_was_meant(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    (folder / "whole").mkdir(parents=True)
    git, to = ["git", "-c", "user.name=a", "-c", "user.email=a@b"], folder / "shallow"
    for argv in ([*git, "init", "-q"], *[[*git, "commit", "-q", "--allow-empty", "-m", each] for each in "ab"]):
        subprocess.run(argv, cwd=folder / "whole", check=True)
    subprocess.run([*git, "clone", "-q", "--depth=1", f"file://{folder}/whole", str(to)], check=True)
    secret = folder / "passwords"
    secret.touch(0o644)
    known = known_error("a.cc:1:1: error: 'uint64_t' does not name a type")
    assert known
    hints = [
        (hint_of(lambda: ARG.parse(f"time={ODD}")), "its own: ", ["--time", f"{ODD}."]),
        (hint_of(lambda: open_repository(to)), "the rest: ", ["git", "-C", str(to), "fetch", "--unshallow"]),
        (hint_of(lambda: private(secret)), "private: ", ["chmod", "600", str(secret)]),
        (f": {known.option}", ": ", ["--cxxflags", "-include cstdint"]),
    ]
    for hint, before, words in hints:
        assert pasted(hint.rpartition(before)[2]) == words, hint


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--builders", "/nonexistent"], "There is no folder /nonexistent.\n--builders takes"),
        (["--workloads", "/nonexistent"], "There is no folder /nonexistent.\n--workloads takes"),
        (["--metric", "p95"], "No pattern finds a p95 in the output"),
    ],
)
@pytest.mark.parametrize("verb", [["run"], ["compare", "--dry-run"]])
def test_what_a_command_has_no_use_for_is_refused_before_anything_is_built(
    repo: Path, verb: list[str], option: list[str], told: str
) -> None:
    assert told in exits(3, *verb, "v1.0", "v1.1", "--repo", str(repo), "--run", "./x", *option)


@pytest.mark.parametrize(("command", "of_shells", "works"), NEEDS_A_SHELL)
def test_what_only_a_shell_understands_is_said_before_anything_is_built(
    repo: Path, command: str, of_shells: str, works: str
) -> None:
    for option, other in (("--run", []), ("--build", ["--run", "./x"])):
        said = exits(3, "run", "v1.0", "v1.1", "--repo", str(repo), option, command, *other)
        assert f"has {of_shells}, and is run without a shell. Write {works}, or quote" in said
    again = pasted(works)[0]
    assert shlex.split(again) == ["sh", "-c", command]
    assert UNSPLIT.parse(again) == again


@pytest.mark.parametrize(
    "command",
    [
        'sh -c "$CXX bench.cc && ./a"',
        "sh -c '$CXX bench.cc'",
        "./b --filter=Scan.*",
        "./b 's/;/,/'",
        './b "a|b"',
        "./b {prefix}/x",
        r"./b \; x",
        "N=3 ./b~",
    ],
)
def test_what_a_shell_would_leave_alone_is_no_work_for_one(command: str) -> None:
    assert UNSPLIT.parse(command) == command


def test_ends_may_be_a_range_of_git(repo: Path) -> None:
    what = ["--builder", "demo", "--workload", "scan", "--repo", str(repo)]
    for between in ("..", "..."):
        assert "# v1.0" in exits(0, "run", f"v1.0{between}v1.1", *what, "--dry-run")
        assert "rounds of 2 visits" in exits(0, "compare", f"v1.0{between}v1.1", *what, "--dry-run")
    assert "--rev is missing" in exits(3, "noise", "v1.0", *what)
    for half in ("v1.0", "v1.0..", "..v1.1"):
        assert "GOOD..BAD" in exits(3, "run", half, *what)


def test_the_habits_of_git_bisect_lead_to_the_verb() -> None:
    for word, verb in HABITS.items():
        assert f"There is no command '{word}'. What it does in git bisect is here: bisect {verb}" in exits(3, word)
        assert verb.split()[0] in VERBS


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90s", 1.5), ("35min", 35), ("1h30m", 90), ("90 s", 1.5), ("2h", 120), ("7", 7), ("1d", 1440)],
)
def test_durations_are_read_as_people_write_them(text: str, minutes: float) -> None:
    assert MINUTES.parse(text) == pytest.approx(minutes)


def test_a_suspicion_that_meets_no_commit_is_said(repo: Path) -> None:
    asked = Settings(
        good="v1.0", bad="v1.2", repository=str(repo), builder="demo", workload="update-index", host="local",
        suspects={"storage/innodb/**": 4.0, "file.c": 2.0},
    )  # fmt: skip
    said = [
        warning.text for warning in HuntSetup.set_up([resolve_settings(asked)])[0].warnings if "suspect" in warning.text
    ]
    assert said == ["No commit of the range touches storage/innodb/**, which you suspect"]


def test_a_metric_without_a_bound_is_refused_with_slow_after(tmp_path: Path) -> None:
    asked = Settings(
        "v1", "v2", str(tmp_path), "sqlite", "update-index", "local", metric="p95", policy=Policy(slow_after=5.0)
    )
    with pytest.raises(UsageError, match="--slow-after cannot be used with p95 of workload update-index"):
        resolve_settings(asked)
