"""The texts of `--help`, the completion of words in shells, and the status line during a wait for a leased machine."""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

import sample_hunt as sample
from perfbisect.cli.commands.report import report, show
from perfbisect.cli.commands.trials import compare
from perfbisect.cli.main import VERBS, bisect
from perfbisect.cli.sessions import leases_with_messages
from perfbisect.errors import EnvironmentFailure
from perfbisect.store.batches import begin_batch
from perfbisect.store.history import History
from perfbisect.ui.stream import START_OF_LINE
from program import LIMIT, exits

# The texts of `--help`, and completion in shells.


FIRST = {  # the first options of long help texts
    "run": ["--build", "--run", "--rate"], "compare": ["--build", "--run", "--rate"], "noise": ["--rev", "--build", "--run"],
    "simulate": ["--commits", "--effect", "--noise"], "show": ["--markdown", "--json", "--csv"], "prove": ["--visits", "--runs", "--wait"],
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_screen_and_help_all_has_every_option(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = bisect.get_command(click.Context(bisect), verb)
    assert command
    every = {param.opts[0] for param in command.params if isinstance(param, click.Option) and not param.hidden}
    short = exits(0, verb, "--help")
    assert sum(max(1, -(-len(line) // 80)) for line in short.splitlines()) <= 50
    for said in (short, *([exits(0, verb, "--help-all")] if "--help-all" in every else [])):
        assert "\b" not in said and "\\x08" not in said
        assert "default: (" not in " ".join(said.split())
        options = said.partition("Options:")[2].partition("Examples:")[0]
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", options, re.MULTILINE)
        assert shown[:3] == FIRST.get(verb, shown[:3])
    assert every < set(shown), "the text printed last is the complete help"


@pytest.fixture
def tagged(git: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a repository with tags. The name of a tag and the subjects contain text that attacks a terminal."""
    monkeypatch.chdir(tmp_path / "repo")
    for name in ("v1.0", "v1.1", "evil$(touch${IFS}x)"):
        git("commit", "-q", "--allow-empty", "-m", f"{name}, and \x1b[2J more")
        git("tag", name)


WORDS = {  # typed words → completions, each with the start of its description
    "run v1.": {"v1.0": "2020-01-02 v1.0, and \\x1b[2J more", "v1.1": "2020-01-02 v1.1"},
    "run v1.0..v1.1": {"v1.0..v1.1": ""},
    "run --builder demo --skip 1.": {"1.0": "2020-01-02 v1.0", "1.1": ""},
    "compare v1.0 H": {"HEAD": "the commit that is checked out"},
    "noise --rev e": {},
    "run --metric ip": {"ipc": ""},
    "run -b mysql -w scan,update-in": {"scan,update-index": "update k = k + 1", "scan,update-inlist": ""},
}


@pytest.mark.tools
@pytest.mark.usefixtures("tagged")
def test_words_complete_in_three_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    for (shell, behind), (typed, offered) in product({"bash": "", "zsh": "\n", "fish": "\t"}.items(), WORDS.items()):
        words = f"bisect {typed}".split()
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
        completion = get_completion_class(shell)
        assert completion
        said = completion(bisect, {}, "bisect", "_BISECT_COMPLETE").complete()
        assert said.count("plain") == len(offered), typed
        for name, meaning in offered.items():
            assert name + (f"{behind}{meaning}" if behind and meaning else "") in said


REAL = {
    "bash": """eval "$(_BISECT_COMPLETE=bash_source bisect)"; COMP_WORDS=(bisect $0); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _bisect_completion bisect; printf '%s\\n' "${COMPREPLY[@]}" """,
    "fish": '_BISECT_COMPLETE=fish_source bisect | source; complete -C "bisect $argv"',
}


@pytest.mark.tools
@pytest.mark.parametrize("shell", REAL)
@pytest.mark.usefixtures("tagged")
def test_a_real_shell_completes(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    if not (shutil.which(shell) and shutil.which("bisect")):
        pytest.skip(f"no {shell} here, or perfbisect is not installed")
    for typed in ("run --builder demo --skip 1.", "run -b mysql -w scan,update-in"):
        argv = [shell, "-c", REAL[shell], typed]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=True)
        assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == set(WORDS[typed])


def completed(command: click.Command, typed: str, **given: object) -> list[str]:
    """The completions of the first argument, with the values of other options."""
    context = click.Context(command)
    context.params.update(given)
    return [item.value for item in command.params[0].shell_complete(context, typed)]


def test_variants_and_session_numbers_are_completed(tmp_path: Path) -> None:
    offers = {"v1.0@l": ["v1.0@lto"], "a@b@p": ["a@b@pgo"], "v1.0": [], "v1.0+": [], "HEAD@{": []}
    assert {typed: completed(compare, typed, builder="demo") for typed in offers} == offers
    assert completed(compare, "v1.0@l") == []
    path = tmp_path / "h.db"
    with closing(History.open(path)) as opened:
        sample.begin(opened)
        sample.begin_trial(opened, sample.comparison(2, ["scan"]).request, 5.0)
        begin_batch(opened, Path("nightly.toml"), [], 0.0)
    for command in (report, show):
        assert completed(command, "", history=path) == ["1", "c2", "b1"]
        assert [completed(command, typed, history=path) for typed in "bc"] == [["b1"], ["c2"]]


# The status line during a wait for a leased machine.


LEASE = """
[leases.one]
acquire = ["sleep", "1.2"]
status = ["echo", "PENDING"]
release = [{release}]
"""


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("released", [True, False])
def test_status_line_is_erased_if_a_lease_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    """The error, and a message on a failed release, begin on an empty line."""
    (tmp_path / "hosts.toml").write_text(LEASE.format(release='"true"' if released else '"false"'))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    nothing = pytest.raises(EnvironmentFailure, match="printed 0 lines")
    with nothing, leases_with_messages(["one:a"], tmp_path / "hosts.toml"):
        raise AssertionError("it is leased")
    assert "waiting for one:a: PENDING" in terminal.getvalue()
    # The text after START_OF_LINE overwrites the line.
    *said, last = [line.rpartition(START_OF_LINE)[2] for line in terminal.getvalue().split("\n")]
    assert last == "" and not [line for line in said if "waiting" in line]
    assert any("could not be released" in line for line in said) is not released
