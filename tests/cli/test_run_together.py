"""`bisect run` with several workloads: each commit is built once, and each workload has a verdict and a log of its own."""

import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.core.domain.events import HuntEnded
from perfbisect.core.domain.settings import Reverts, Settings
from perfbisect.errors import EnvironmentFailure, ReaderGone
from perfbisect.hunt.driver import Driver
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.setup import HuntSetup
from perfbisect.hunt.trials.proof import claim_of, proof_setup
from perfbisect.store.history import History
from perfbisect.ui.lines import PlainLines
from perfbisect.ui.view_model import TimedEvent
from program import bisect_until, exits, rows

pytestmark = pytest.mark.tools

Script = Callable[[str], str]

HUNT = ["--builder", "script", "--repo", "repo", "--workload", "one,two", "--no-explain"]
HISTORY = Path(".local/state/perfbisect/history.db")
MADE = "select commit_hash, count(*) from builds where not reused group by 1 having count(*) > 1"
BUILDER = Path("builders/script/builder.toml")

# A run prints the rate of its workload, with some noise that differs between runs.
RATES = """{first}
noise=$(($(date +%N | cut -c 7-9 | sed 's/^0*//;s/^$/0/') % 7))
case $1 in one) echo rate $(({one} + noise));; two) echo rate $(({two} + noise));; esac"""


@pytest.fixture
def tried(script: Script, tmp_path: Path) -> Path:
    """A file with a line for each build that was attempted."""
    assert script
    text = BUILDER.read_text()
    assert '"! grep' in text
    BUILDER.write_text(text.replace('"! grep', f'"cat {{source}}/run.sh | tail -1 >>{tmp_path}/tried; ! grep'))
    return tmp_path / "tried"


def line_of(script: Script, size: int, one: int, two: int, first: dict[int, str] | None = None) -> list[str]:
    """Commits of which number ``one`` makes workload one slower, and ``two`` the other; ``first`` are lines of their scripts."""
    return [
        script(
            f"{RATES}\n# commit {number}".format(
                one=700 if one <= number else 1000,
                two=600 if two <= number else 1000,
                first=(first or {}).get(number, ""),
            )
        )
        for number in range(size)
    ]


def statuses(seal: Path) -> list[tuple[int | None, str]]:
    """How the batch knows that each hunt has ended, and the first words of the reason."""
    return [
        (status, " ".join(failure.split()[:4]))
        for status, failure in rows(seal / HISTORY, "select status, coalesce(failure, '') from batch_hunts")
    ]


def culprits(seal: Path) -> dict[str, str]:
    return dict(rows(seal / HISTORY, "select workload, culprit from culprits"))


def test_each_hunt_says_which_suspicion_meets_no_commit(script: Script) -> None:
    """What the recipe of a workload suspects is not the user's, in that hunt alone."""
    commits = line_of(script, 2, one=1, two=1)
    with Path("workloads/script/suite.toml").open("a") as suite:
        suite.write('one.suspects = { "one.c" = 2 }\n')
    asked = Settings(
        commits[0], commits[1], "repo", "script", "", "local",
        suspects={"one.c": 4.0, "none.c": 4.0}, builders_path="builders", workloads_path="workloads",
    )  # fmt: skip
    every = [resolve_settings(replace(asked, workload=workload)) for workload in ("one", "two")]
    for settings in (every, every[::-1]):
        said = {
            setup.workload.name: [warning.text.split()[6] for warning in setup.warnings if "suspect" in warning.text]
            for setup in HuntSetup.set_up(settings)
        }
        assert said == {"one": ["none.c,"], "two": ["one.c,", "none.c,"]}


def test_each_commit_is_built_once_and_each_workload_has_its_culprit(
    script: Script, seal: Path, tried: Path, tmp_path: Path
) -> None:
    commits = line_of(script, 24, one=7, two=18)
    out = exits(0, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert culprits(seal) == {"one": commits[7], "two": commits[18]}
    built = tried.read_text().splitlines()
    assert len(built) == len(set(built))
    counts = dict(rows(seal / HISTORY, "select workload, build_count from hunts"))
    assert sum(counts.values()) == len(built)
    assert out.count("  built  ") == len(built)

    assert "b1: together, hunts 1, 2; 2 of 2 with a verdict" in exits(0, "history")
    with closing(History.open(seal / HISTORY)) as history:
        claim = replace(claim_of(history, 2), reverts=Reverts(2, (commits[-1],)))  # which reverts cleanly
    with proof_setup(claim, 2, 1, None, print) as plan:
        assert [each.name for each in plan.workloads] == ["two"]
        assert {each.name for each in plan.setup.measured} == {"one", "two"}, "builds are trained as in the hunt"
    shown = exits(0, "show", "b1")
    assert "Batch b1 of hunts that share all builds" in shown
    assert all(f"found {commits[number][:10]}" in shown for number in (7, 18))
    assert "together  with hunt 2 (b1)" in exits(0, "show", "1")
    assert json.loads(exits(0, "show", "2", "--json"))["together"].startswith("with hunt 1 (b1)")
    assert "- together: with hunt 1" in exits(0, "show", "2", "--markdown")
    exits(0, "report", "b1", "--output", str(tmp_path / "pages"))
    assert "with hunt 2 (b1)" in (tmp_path / "pages" / "hunt-1.html").read_text()
    watched = exits(0, "watch", "b1", "--plain")
    assert watched.count("verdict") == 2
    for number, hunt in ((7, "1"), (18, "2")):
        replayed = exits(0, "replay", hunt)
        assert f"The culprit is {commits[number][:10]}" in replayed
        assert "Budgets count for it alone" in replayed
    assert "All hunts of b1 have a verdict" in exits(3, "resume", "b1")


def test_a_build_that_fails_fails_for_all_and_a_run_that_fails_for_its_own_workload(
    script: Script, seal: Path, tried: Path
) -> None:
    """The middle of the range, which is tried first, does not build; what follows it fails in one workload."""
    first = dict.fromkeys(range(4, 8), "# does not build") | {8: "[ $1 = one ] || exit 7"}
    commits = line_of(script, 12, one=9, two=3, first=first)
    exits(0, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert culprits(seal) == {"one": commits[9], "two": commits[3]}
    built = tried.read_text().splitlines()
    assert len(built) == len(set(built))
    failed = rows(
        seal / HISTORY, "select hunts.workload, commit_hash, stage from skips join hunts on hunts.id = session_id"
    )
    by_build = {(workload, commit) for workload, commit, stage in failed if stage == "compile"}
    of_one, of_two = ({commit for name, commit in by_build if name == workload} for workload in ("one", "two"))
    assert of_two
    assert of_two <= of_one <= {*commits[4:8]}  # when one of the latter failed, two may have had its verdict
    assert {workload for workload, _, stage in failed if stage == "run"} <= {"two"}


def test_a_workload_that_fails_at_an_end_stops_no_other_and_can_go_on(
    script: Script, seal: Path, tmp_path: Path
) -> None:
    fixed = tmp_path / "fixed"
    needs = f"[ $1 = one ] || [ -e {fixed} ] || exit 7"
    commits = line_of(script, 8, one=5, two=2, first={7: needs})
    said = exits(4, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert "Hunt 2 has failed: nothing can be compared, because the bad end" in said
    assert "Go on with: bisect resume 2" in said
    assert culprits(seal) == {"one": commits[5]}
    listing = exits(0, "show", "b1")
    assert "failed: nothing can be compared" in listing
    fixed.touch()
    exits(0, "resume", "2", "--plain")
    assert culprits(seal) == {"one": commits[5], "two": commits[2]}
    assert rows(seal / HISTORY, "select count(*) from sittings where session_id = 1") == [(1,)]


def test_a_hunt_that_cannot_go_on_stops_no_other(
    script: Script, seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workload was changed while others had no verdict. What ends a session is not entered as its reason."""
    fixed = tmp_path / "fixed"
    commits = line_of(script, 8, one=5, two=2, first={7: f"[ -e {fixed} ] || exit 7"})
    exits(4, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert statuses(seal) == [(4, "nothing can be compared,")] * 2
    fixed.touch()
    suite = Path("workloads/script/suite.toml")
    before = suite.read_text()
    suite.write_text(before.replace('"two", "{threads}"', '"two", "8"'))
    cut = "Hunt 2 cannot go"
    for end, trouble, reason in (
        (130, KeyboardInterrupt(), (None, "")),
        (4, EnvironmentFailure("host local is lost"), (4, "host local is lost")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Driver, "session", raising(trouble))
            exits(end, "resume", "b1", "--plain")
        assert statuses(seal) == [reason, (4, cut)]
    assert "Hunt 2 has failed: Hunt 2 cannot go on" in exits(4, "resume", "1", "--plain")
    assert culprits(seal) == {"one": commits[5]}
    assert "Hunt 2 cannot go on" in exits(3, "resume", "b1")
    suite.write_text(before)
    exits(0, "resume", "b1", "--plain")
    assert culprits(seal) == {"one": commits[5], "two": commits[2]}
    assert statuses(seal) == [(0, "")] * 2


def raising(trouble: BaseException) -> Callable[..., object]:
    def session(*_: object) -> object:
        raise trouble

    return session


def test_a_verdict_is_in_the_batch_though_it_could_not_be_shown(
    script: Script, seal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = line_of(script, 6, one=2, two=2)
    shown = PlainLines.show

    def show(view: PlainLines, hunt: int, events: list[TimedEvent]) -> None:
        if any(isinstance(event, HuntEnded) for _, event in events):
            raise ReaderGone
        shown(view, hunt, events)

    with monkeypatch.context() as patched:
        patched.setattr(PlainLines, "show", show)
        exits(130, "run", commits[0], commits[-1], *HUNT, "--plain")
    assert sorted(status for status, _ in statuses(seal) if status is not None) == [0]
    with closing(sqlite3.connect(seal / HISTORY)) as history:  # as if it had been killed before it was entered
        history.execute("update batch_hunts set status = null")
        history.commit()
    exits(0, "resume", "b1", "--plain")
    assert statuses(seal) == [(0, "")] * 2
    assert "2 of 2 with a verdict" in exits(0, "history")


def test_a_group_that_is_killed_and_interrupted_goes_on_with_all_its_hunts(
    script: Script, seal: Path, tried: Path
) -> None:
    commits = line_of(script, 24, one=7, two=18)
    begin = ["run", commits[0], commits[-1], *HUNT, "--json"]
    assert bisect_until(begin, '"purpose":"search"', signal.SIGKILL).returncode == -signal.SIGKILL
    ended = bisect_until(["resume", "b1", "--json"], '"event":"RunFinished"', signal.SIGINT)
    assert ended.returncode == 130
    assert "bisect resume b1" in ended.stderr
    assert {json.loads(line)["hunt"] for line in ended.stdout.splitlines()} == {1, 2}
    exits(0, "resume", "--all", "--plain")
    assert culprits(seal) == {"one": commits[7], "two": commits[18]}
    built = tried.read_text().splitlines()
    assert len(built) - len(set(built)) <= 1  # the build during which it was killed
    assert rows(seal / HISTORY, MADE) == []
    assert rows(seal / HISTORY, "pragma integrity_check") == [("ok",)]


def test_what_several_workloads_cannot_do_is_refused_before_anything_is_built(
    script: Script, tried: Path, tmp_path: Path
) -> None:
    assert script
    assert "There is no workload and no group 'three'" in exits(3, "run", "a", "b", *HUNT, "--workload", "one,three")
    batch = tmp_path / "batch.toml"
    batch.write_text('[[hunt]]\ngood = "a"\nbad = "b"\nbuilder = "script"\nrepo = "repo"\nworkload = "one,two"\n')
    assert "Write a list, which makes a hunt for each." in exits(3, "batch", str(batch))
    assert not tried.exists()


def test_a_dry_run_prints_the_build_once_and_the_commands_of_each_workload(script: Script) -> None:
    commits = line_of(script, 3, one=1, two=2)
    printed = exits(0, "run", commits[0], commits[-1], *HUNT, "--dry-run")
    assert printed.count("install -D") == 1
    assert "# Workload two, with the same builds: the same except" in printed
    assert printed.count("run.sh one") == printed.count("run.sh two") == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_several_workloads_on_several_hosts_go_on_after_kill_9(
    script: Script, seal: Path, tried: Path, tmp_path: Path, elsewhere: bool
) -> None:
    """Each host measures either workload; builds are made on each, or ahead on a third one."""
    commits = line_of(script, 12, one=4, two=9)
    builds = 'build_hosts = ["made"]\n' if elsewhere else ""
    entries = [f'[hosts.{name}]\nroot = "{tmp_path}/{name}"\n' for name in ("one", "two", "made")]
    Path("hosts.toml").write_text(f"{entries[0]}{builds}{entries[1]}{builds}{entries[2]}")
    words = ["run", commits[0], commits[-1], *HUNT, "--hosts", "hosts.toml", "--host", "one", "--host", "two"]
    cut = bisect_until([*words, "--json"], '"RunFinished"', signal.SIGKILL)
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    before = rows(seal / HISTORY, "select id, session_id, kind, body from events order by id")
    exits(0, "resume", "b1", "--plain")
    assert culprits(seal) == {"one": commits[4], "two": commits[9]}
    after = rows(seal / HISTORY, "select id, session_id, kind, body from events order by id")
    assert after[: len(before)] == before
    assert {host for (host,) in rows(seal / HISTORY, "select distinct host from runs")} == {"one", "two"}
    made = rows(seal / HISTORY, "select host, commit_hash, count(*) from builds where not reused group by 1, 2")
    assert all(times == 1 for _, _, times in made)
    assert {host for host, _, _ in made} == ({"made"} if elsewhere else {"one", "two"})
