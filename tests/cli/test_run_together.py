"""`bisect run` with several workloads: each commit is built once, and each workload has a verdict and a log of its own."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from perfbisect.core.domain.events import SessionEnded
from perfbisect.core.domain.settings import RevertedCommits, Settings
from perfbisect.errors import EnvironmentFailure, StdoutClosed
from perfbisect.hunt.driver import SessionDriver
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.proof import claim_of, proof_setup
from perfbisect.store.history import History
from perfbisect.ui.lines import PlainLines
from perfbisect.ui.session_view import TimedEvent
from program import exits, rows, run

pytestmark = pytest.mark.tools

Script = Callable[[str], str]

HUNT = ["--builder", "script", "--repo", "repo", "--workload", "one,two", "--no-explain"]
HISTORY = Path(".local/state/perfbisect/history.db")

# A run prints the rate of its workload, with some noise that differs between runs.
RATES = """{first}
noise=$(($(date +%N | cut -c 7-9 | sed 's/^0*//;s/^$/0/') % 7))
case $1 in one) echo rate $(({one} + noise));; two) echo rate $(({two} + noise));; esac
# commit {number}"""


def line_of(script: Script, size: int, one: int, two: int, last: str = "") -> list[str]:
    """Commits: number ``one`` slows workload one, number ``two`` slows workload two; the last begins with ``last``."""
    hashes = []
    for number in range(size):
        rates = {"one": 700 if one <= number else 1000, "two": 600 if two <= number else 1000}
        hashes.append(script(RATES.format(first=last if number == size - 1 else "", number=number, **rates)))
    return hashes


def culprits(seal: Path) -> dict[str, str]:
    return dict(rows(seal / HISTORY, "select workload, culprit from culprits"))


def test_hunt_warns_of_useless_suspects_and_dry_run_has_one_build(script: Script) -> None:
    """A path that a workload's recipe suspects causes no warning in the hunt of this workload."""
    good, _, bad = line_of(script, 3, one=1, two=2)
    printed = exits(0, "run", good, bad, *HUNT, "--dry-run")
    assert [printed.count(each) for each in ("install -D", "run.sh one", "run.sh two")] == [1, 1, 1]
    assert "# Workload two, with the same builds: the same commands, except:" in printed
    with Path("workloads/script/suite.toml").open("a") as suite:
        suite.write('one.suspects = { "one.c" = 2 }\n')
    asked = Settings(
        good, bad, "repo", "script", "", "local",
        suspects={"one.c": 4.0, "none.c": 4.0}, builders_path="builders", workloads_path="workloads",
    )  # fmt: skip
    every = [resolve_settings(replace(asked, workload=workload)) for workload in ("one", "two")]
    for settings in (every, every[::-1]):
        said = {
            setup.workload.name: [warning.text.split()[1] for warning in setup.warnings if "suspect" in warning.text]
            for setup in SessionSetup.set_up(settings)
        }
        assert said == {"one": ["none.c"], "two": ["one.c", "none.c"]}


@pytest.mark.slow
def test_commit_is_built_once_and_each_workload_has_its_culprit(script: Script, seal: Path, tmp_path: Path) -> None:
    commits = line_of(script, 6, one=2, two=4)
    builder, tried = Path("builders/script/builder.toml"), tmp_path / "tried"
    keeps = f'"cat {{source}}/run.sh | tail -1 >>{tried}; ! grep'
    builder.write_text(builder.read_text().replace('"! grep', keeps))
    out = exits(0, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert culprits(seal) == {"one": commits[2], "two": commits[4]}
    built = tried.read_text().splitlines()
    assert len(built) == len(set(built)) == out.count("  built  ")
    assert rows(seal / HISTORY, "select sum(build_count) from hunts") == [(len(built),)]

    with closing(History.open(None)) as history:
        claim = replace(claim_of(history, 2), reverts=RevertedCommits(2, (commits[-1],)))  # which reverts cleanly
    with proof_setup(claim, 2, 1, None, print) as plan:
        assert [each.name for each in plan.works] == ["two"]
        assert {each.name for each in plan.measured} == {"one", "two"}, "builds are trained as in the hunt"
    for said, words in (
        ("b1: hunts 1, 2 of one command; 2 of 2 have a verdict", ["history"]),
        ("Batch b1 of hunts that share all builds", ["show", "b1"]),
        ("together  with hunt 2 (batch b1)", ["show", "1"]),
        ('"together": "with hunt 1 (batch b1)', ["show", "2", "--json"]),
        ("- together: with hunt 1", ["show", "2", "--markdown"]),
        (f"found {commits[2][:10]}", ["show", "b1"]),
        (f"found {commits[4][:10]}", ["show", "b1"]),
        (f"The culprit is {commits[4][:10]}", ["replay", "2"]),
        ("counts only the time, builds and runs of hunt 1", ["replay", "1"]),
    ):
        assert said in exits(0, *words), words
    exits(0, "report", "b1", "--output", str(tmp_path / "pages"))
    assert "with hunt 2 (batch b1)" in (tmp_path / "pages" / "hunt-1.html").read_text()
    assert exits(0, "watch", "b1", "--plain").count("verdict") == 2
    assert "All hunts of batch b1 have a verdict." in exits(3, "resume", "b1")


def unread(_view: PlainLines, _hunt: int, events: list[TimedEvent]) -> None:
    """Raise StdoutClosed when a verdict is shown."""
    if any(isinstance(event, SessionEnded) for _, event in events):
        raise StdoutClosed


@pytest.mark.slow
def test_failed_hunt_stops_no_hunt(script: Script, seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hunt 2 cannot continue because its workload was changed. An interruption is not stored as a failure of a hunt; a
    verdict is stored even if the verdict could not be printed.
    """

    def statuses() -> list[tuple[int | None, str]]:
        found = rows(seal / HISTORY, "select status, coalesce(failure, '') from batch_hunts")
        return [(status, " ".join(failure.split()[:4])) for status, failure in found]

    fixed = tmp_path / "fixed"
    commits = line_of(script, 8, one=5, two=2, last=f"[ -e {fixed} ] || exit 7")
    said = exits(4, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert statuses() == [(4, "nothing can be compared,")] * 2
    assert "Hunt 2 failed: nothing can be compared, because the bad revision" in said
    assert "To continue: bisect resume 2" in said
    assert "failed: nothing can be compared" in exits(0, "show", "b1")
    fixed.touch()
    suite = Path("workloads/script/suite.toml")
    before = suite.read_text()
    suite.write_text(before.replace('"two", "{threads}"', '"two", "8"'))
    for end, trouble, reason in (
        (130, KeyboardInterrupt(), (None, "")),
        (4, EnvironmentFailure("host local is lost"), (4, "host local is lost")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(SessionDriver, "events", Mock(side_effect=trouble))
            exits(end, "resume", "b1", "--plain")
        assert statuses() == [reason, (4, "Hunt 2 cannot continue,")]
    assert "Hunt 2 failed: Hunt 2 cannot continue" in exits(4, "resume", "1", "--plain")
    assert culprits(seal) == {"one": commits[5]}
    assert "Hunt 2 cannot continue" in exits(3, "resume", "b1")
    suite.write_text(before)
    with closing(History.open(None)) as history:  # as if killed before the verdicts were stored
        history.connection.execute("update batch_hunts set status = null")
    with monkeypatch.context() as patched:
        patched.setattr(PlainLines, "add_events", unread)
        assert "The verdicts are final" in run("resume", "b1", "--plain").err
    assert culprits(seal) == {"one": commits[5], "two": commits[2]}
    assert statuses() == [(0, "")] * 2
