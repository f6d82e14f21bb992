"""A history written by a released version opens, is reported, replays and resumes, and what is stored keeps its form.

``released.sql`` is the dump of such a history: a hunt through the demo's engine, one for every change, one that was
interrupted, a comparison and an A/A. ``released.json`` has every type of event, every reason of an inconclusive hunt
and the settings of a hunt, with all their fields. Neither file is ever edited. A renamed attribute is decoded from and
encoded to the name that it has there.
"""

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sample_hunt as sample
from histories import data
from perfbisect.cli.main import main
from perfbisect.core.domain.events import Decided, HuntEnded
from perfbisect.core.domain.orders import Found, Several
from perfbisect.core.domain.policy import PriorKnowledge
from perfbisect.core.domain.settings import Settings
from perfbisect.core.domain.stored_forms import read_settings
from perfbisect.lab.build import build_store
from perfbisect.lab.workload import fingerprint as method
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import load_requested
from perfbisect.store.codec import decode, encode
from perfbisect.store.history import History

HERE = Path(__file__).parent
RELEASED = json.loads((HERE / "released.json").read_text())
REASONS = {  # that were sentences, and how they are written now
    "the good end cannot be measured": {"reason": "good not measurable"},
    "the bad end cannot be measured": {"reason": "bad not measurable"},
    "no host is left": {"reason": "no host"},
    "the budget of builds is used up": {"reason": "budget of builds"},
    "the budget of 40 runs is used up": {"reason": "budget of runs", "detail": 40.0},
    "the budget of 90 minutes is used up": {"reason": "budget of minutes", "detail": 90.0},
}
CULPRIT = "c591f022b0"  # of the first hunt
CHANGES = ["1f40570af1421e77bc1df7d647149946187cfac1", "c637c78842c9ea00041ab548a54851eda836e975"]  # of the second
SPEEDS = [1000] * 4 + [800] * 5 + [600] * 5  # of the commits v0, v1, … that the second and third hunt searched
BROKEN = 6  # the commit that does not build
BENCH = r"""#!/bin/sh
awk -v seed="$(date +%N)" -v speed="$(cat speed)" 'BEGIN { srand(seed); printf "ops/s: %.1f\n", speed * (0.995 + rand() / 100) }'
"""

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """The history as a file; its second and third hunt searched ``tmp_path/counter``."""
    path = tmp_path / "history.db"
    dump = (HERE / "released.sql").read_text().replace("/srv/counter", str(tmp_path / "counter"))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN;{dump}COMMIT;")
    return path


@pytest.fixture
def counter(tmp_path: Path) -> None:
    """The repository of the second and third hunt, with the hashes that it had."""
    folder, parts = tmp_path / "counter", []
    for number, speed in enumerate(SPEEDS):
        files = {
            "bench": BENCH,
            "speed": f"{speed}\n",
            "number": f"{number}\n",
            "builds": "no\n" if number == BROKEN else "yes\n",
        }
        parts += [
            f"commit refs/heads/main\nmark :{number + 1}\n",
            f"committer Ann Author <ann@example.org> {1_600_000_000 + number} +0000\n",
            data(f"Change {number}"),
            *(f"M {755 if path == 'bench' else 644} inline {path}\n{data(text)}" for path, text in files.items()),
            f"reset refs/tags/v{number}\nfrom :{number + 1}\n\n",
        ]
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input="".join(parts), text=True, check=True)


@pytest.fixture
def invoke(released: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """``invoke(*args)`` runs the program on the released history: exit status, standard output and standard error."""
    time.tzset()

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["bisect", *args, "--history", str(released)])
        with pytest.raises(SystemExit) as left:
            main()
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    return run


# Fields that were added since, with the values that they have in what was stored before.
SINCE_OF_BUILDS: dict[str, Any] = {
    "system": "",
    "patches": {},
    "linker": "",
    "fixed": "",
    "remote_hits": 0,
    "shared": False,
}
SINCE_OF_RUNS: dict[str, Any] = {"slower_than": 0.0, "layout": 0, "counted": "", "events": 0, "running": {}}
SINCE_OF_POLICY = {"min_counted": 0.0, "slow_after": 0.0, "layouts": False}
SINCE_OF_SETTINGS: dict[str, Any] = {
    "system": "", "configure": [], "skips": {}, "patches": [], "choose_metric": False, "root": "", "explain": False,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "body"), RELEASED["events"])
def test_every_stored_event_is_read_and_written_in_the_form_it_had(kind: str, body: dict[str, Any]) -> None:
    event = decode(kind, json.dumps(body))
    assert type(event).__name__ == kind
    if kind == "HuntEnded" and (rewritten := REASONS.get(body["verdict"].get("reason", ""))):
        body = {"verdict": {**body["verdict"], **rewritten}}
    if kind == "HuntEnded" and body["verdict"]["kind"] == "NotReproduced":
        body = {"verdict": {**body["verdict"], "least": 0.0, "direction": "any"}}
    if kind == "HuntEnded" and body["verdict"]["kind"] == "Several":
        body = {"verdict": {**body["verdict"], "left": 0.0}}
    if kind == "BuildFinished":
        body = {**body, "facts": {**body["facts"], **SINCE_OF_BUILDS}}
    if kind == "CandidateSkipped":
        body = {**body, "facts": {**body["facts"], "for_another": False}}
    if kind == "RunFinished":
        body = {**body, "facts": {**body["facts"], **SINCE_OF_RUNS}}
    assert json.loads(encode(event, ())) == body


def test_the_settings_of_a_hunt_are_read_and_written_in_the_form_they_had(history: History) -> None:
    before = msgspec.convert(read_settings(RELEASED["settings"]), Settings)
    assert before.prior == PriorKnowledge(4.5, 0.0625, ("small", "large"))
    hunt = sample.begin(history, before)
    policy = RELEASED["settings"]["policy"] | SINCE_OF_POLICY
    assert json.loads(str(history.column(hunt, "settings"))) == RELEASED["settings"] | SINCE_OF_SETTINGS | {
        "policy": policy
    }
    assert history.settings(hunt) == before


def test_the_log_of_each_hunt_is_read(released: Path) -> None:
    with closing(History.open(released)) as history:
        logs = {hunt: list(history.events(hunt)) for hunt in (1, 2, 3)}
        assert [len(history.log(hunt)) for hunt in logs] == [18, 27, 13]
        assert history.connection.execute("PRAGMA foreign_key_check").fetchall() == []
        verdicts = [entry.event.verdict for hunt in logs for entry in logs[hunt] if isinstance(entry.event, HuntEnded)]
        first, second = verdicts
        assert isinstance(first, Found)
        assert history.candidates(1)[first.step.candidate].startswith(CULPRIT)
        assert isinstance(second, Several)
        assert [history.candidates(2)[step.candidate] for step in second.steps] == CHANGES
        assert sum(isinstance(entry.event, Decided) for entry in logs[3]) == 4
        assert history.settings(1).overrides == {"time": 1, "warmup": 0.2}
        assert history.settings(2).policy.all_steps
        quick = history.settings(3).quick
        assert quick is not None
        assert (quick.run, quick.build, quick.rate) == ("./bench", ("grep -q yes builds",), "ops/s: ([0-9.]+)")


def test_hashes_of_recipes_are_what_they_were(released: Path) -> None:
    """Otherwise no hunt with these recipes could be resumed."""
    with closing(History.open(released)) as history:
        settings, [stored] = history.settings(1), history.query("select settings from hunts where id = 1").rows
    builder, workload = load_requested(settings)
    variant = variant_of(builder, settings.variant)
    hashes = {
        "told": method.fingerprint(builder, workload, [HostEntry()]),
        "made": build_store.fingerprint(builder, variant),
    }
    assert json.loads(stored[0]).items() >= hashes.items()


def test_trials_are_read(released: Path) -> None:
    with closing(History.open(released)) as history:
        comparison, noise = history.trial("c1"), history.trial("n2")
        assert [[run.round, run.subject] for run in comparison.runs] == [[0, 0], [0, 1], [1, 1], [1, 0]]
        assert comparison.state == noise.state == "done"
        assert all(run.facts.qps > 1000 and run.facts.counters["instructions"] for run in comparison.runs + noise.runs)


def test_it_is_listed_shown_and_asked(invoke: Invoke) -> None:
    status, listed, _ = invoke("history")
    assert status == 0
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["1", "2", "3", "c1", "n2"]
    assert CULPRIT in listed
    assert "interrupted" in listed
    for name, says in (
        ("1", f"The culprit is {CULPRIT}"),
        ("2", "2 changes of rate"),
        ("3", "interrupted"),
        ("c1", "instructions/o"),
        ("n2", "within rounds"),
    ):
        status, shown, complaint = invoke("show", name)
        assert status == 0, complaint
        assert says in shown
        assert invoke("show", name, "--json")[0] == 0
    status, answer, _ = invoke("query", "select culprit from culprits", "--json")
    assert status == 0
    assert [row["culprit"] for row in json.loads(answer)][1:] == CHANGES


@pytest.mark.tools
@pytest.mark.usefixtures("counter")
def test_it_replays_to_the_same_decisions(invoke: Invoke) -> None:
    status, decisions, complaint = invoke("replay", "2")
    assert status == 0, complaint
    assert "   20 runs  verdict\n2 changes of rate" in decisions
    assert [change for change in CHANGES if f"{change[:10]} (2020-09-13" in decisions] == CHANGES
    _, decisions, _ = invoke("replay", "3")
    assert "\n    6 runs  1f40570af1 leads with 50 %\nThe log ends here" in decisions


@pytest.mark.tools
@pytest.mark.usefixtures("counter")
def test_a_resumed_hunt_reads_its_log_and_decides(invoke: Invoke, released: Path) -> None:
    """Its builds are gone and would be made by another compiler: then it stops, and says so, with its log unharmed."""
    status, out, complaint = invoke("resume", "3", "--json")
    assert status == 3, complaint
    assert "would now be built differently" in complaint
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["resumed"] for event in events if event["event"] == "HuntStarted"][-1] is True
    assert [event["order"]["plan"] for event in events if event["event"] == "Decided"][-1]
    with closing(History.open(released, read_only=True)) as history:
        assert len(history.log(3)) == 13
        assert history.listed(3).state == "failed"
