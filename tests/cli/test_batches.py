"""Hunts of a batch as processes: how each ends, and that the end of one is not the end of others."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

import sample_hunt
from perfbisect.cli.commands.batch import follow
from perfbisect.cli.commands.history import batch_line
from perfbisect.cli.commands.show import batch_table
from perfbisect.core.domain.events import HuntEnded
from perfbisect.core.domain.orders import Inconclusive, Interval, Reason
from perfbisect.errors import EnvironmentFailure, Interrupted, UsageError
from perfbisect.hunt import batch as carry_out
from perfbisect.hunt.batch import Stage, Task, locked_hosts, state_of, tasks_of, title_of
from perfbisect.store.batches import Planned, begin_batch, claim, enter_hunt, enter_status, read_batch
from perfbisect.store.history import History
from perfbisect.store.listing import Listed
from perfbisect.ui.lines import PlainLines
from perfbisect.ui.view_model import Row


def unseen() -> PlainLines:
    """A view that nobody reads."""
    return PlainLines(io.StringIO(), {})


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A new history."""
    with closing(History.open(tmp_path / "h.db")) as opened:
        yield opened


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``play(script)`` lets a script of the shell be each hunt; its arguments are those of `bisect`. Looks follow soon."""
    monkeypatch.setattr(carry_out, "EVERY", 0.02)
    return lambda script: monkeypatch.setattr(carry_out, "PROGRAM", ("sh", "-c", script, "sh"))


Play = Callable[[str], None]


def plan(history: History, *folders: Path) -> int:
    """A batch with a hunt in each folder, each with a host of its own: h0, h1, …"""
    words = ("--builder=x", "--", "a", "b")
    planned = [Planned(words, str(folder), ((f"h{number}",),)) for number, folder in enumerate(folders)]
    return begin_batch(history, Path("/batch.toml"), planned, 1.0)


def carried_out(history: History, *batches: int) -> int:
    """The exit status of these batches."""
    tasks = [task for batch in batches for task in tasks_of(read_batch(history, batch), history)]
    return follow(tasks, history, Path("of $mine.db"), "again", view=unseen())


def ends(history: History, batch: int) -> list[tuple[int | None, str]]:
    """How its hunts have ended."""
    return [(one.status, one.failure) for one in read_batch(history, batch).hunts]


def test_a_hunt_that_fails_stops_no_other(
    history: History, play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a signal, or without its folder; the command for their page can be copied."""
    play('case "$*" in *--host=h0*) kill -9 $$;; esac; sleep 0.2')
    batch = plan(history, tmp_path, tmp_path / "gone", tmp_path)
    assert carried_out(history, batch) == 128 + 9
    printed = capsys.readouterr()
    assert "failed: killed by signal 9" in printed.err
    assert "Their page: bisect report b1 --history 'of $mine.db'\n" in printed.out
    killed, gone, other = ends(history, batch)
    assert (killed, other) == ((137, "killed by signal 9"), (0, ""))
    assert gone[0] == 4 and str(tmp_path / "gone") in gone[1]


def test_interrupted_it_says_how_many_had_ended_and_how(history: History, play: Play, tmp_path: Path) -> None:
    play('case "$*" in *--host=h0*) exit 4;; *--host=h1*) exit 0;; esac; trap "" INT; exec sleep 5')
    batch = plan(history, *[tmp_path] * 4)

    class Stopped(PlainLines):
        def states(self, rows: Sequence[Row]) -> None:
            if sum(task.stage is Stage.ENDED for task in tasks) == 2:
                raise KeyboardInterrupt

    tasks = tasks_of(read_batch(history, batch), history)
    with pytest.raises(Interrupted, match=r"2 hunts of 4 ended before, 1 of them without a verdict\. .* with: again"):
        follow(tasks, history, None, "again", view=Stopped(io.StringIO(), {}))
    assert [task.process.returncode for task in tasks[2:] if task.process] == [-signal.SIGTERM] * 2, "none goes on"


def test_a_hunt_that_does_not_begin_has_no_verdict(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python ends with the status of a verdict where it cannot import the program."""
    monkeypatch.setattr(carry_out, "PROGRAM", (sys.executable, "-c", "import perfbisect.gone"))
    batch = plan(history, tmp_path)
    assert carried_out(history, batch) == 4
    assert ends(history, batch) == [(4, "ModuleNotFoundError: No module named 'perfbisect.gone'")]
    assert "0 of 1 hunt ended with a verdict" in capsys.readouterr().out
    task = Task("", (), "", ((),), "", hunt=sample_hunt.begin(history), stage=Stage.RUNNING)
    carry_out.end(task, 1, history)
    assert task.status == 4, "one that is gone on with has none, either"


def test_a_hunt_whose_rows_are_damaged_stops_no_other(
    history: History, play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play("sleep 0.2")
    batch = plan(history, tmp_path, tmp_path, tmp_path)
    listed, settings = history.listed, history.settings
    looks: list[int] = []

    def damaged(hunt: int) -> Listed:
        looks.append(hunt)
        if hunt == 999:
            raise EnvironmentFailure("table hunts is damaged")
        return listed(hunt)

    history.connection.execute("PRAGMA foreign_keys = OFF")
    monkeypatch.setattr(history, "listed", damaged)
    monkeypatch.setattr(history, "settings", lambda hunt: (damaged(hunt), settings(hunt))[1])
    enter_hunt(history, batch, 1, 999)  # damaged before it is gone on with
    assert carried_out(history, batch) == 4
    assert ends(history, batch) == [(0, ""), (4, "table hunts is damaged"), (0, "")]
    enter_status(history, batch, 1, 0)  # its verdict is known
    assert carried_out(history, batch) == 0
    looks.clear()
    task = Task("", (), "", ((),), "", hunt=999, stage=Stage.ELSEWHERE)
    carry_out.observe(task, history, unseen(), {})  # damaged while another process works on it
    assert (task.stage, task.status, task.failure) == (Stage.ENDED, 4, "table hunts is damaged")
    assert looks == [999]


def test_each_batch_has_its_own_logs_and_errors_of_earlier_processes_are_not_told_again(
    history: History, play: Play, tmp_path: Path
) -> None:
    play('echo "Error: of ${7#*:} in batch ${7%:*}"; exit 4')
    batches = [plan(history, tmp_path) for _ in range(2)]
    assert carried_out(history, *batches) == 4
    for batch in batches:
        [(_, failure)] = ends(history, batch)
        log = tmp_path / "h-batches" / f"b{batch}" / "1.log"
        assert failure == f"of 0 in batch {batch}"
        assert log.read_text() == f"Error: {failure}\n"
    play("exit 4")
    carried_out(history, batches[0])
    assert ends(history, batches[0]) == [(4, "")]


def test_leased_hosts_that_build_make_no_hunt_wait(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text(
        '[hosts.a]\naddress = "a"\nbuild_hosts = ["pool:*2", "c"]\n[hosts.c]\naddress = "c"\n'
        '[leases.pool]\nacquire = ["true", "{count}"]\nrelease = ["true", "{job}"]\n'
        '[leases.pool.host]\naddress = "{address}"\n'
    )
    task = Task("", (), str(tmp_path), (("a",),), "")
    assert locked_hosts(task, "a") == ("a", "c")


def test_what_a_hunt_locks_is_asked_once(history: History, play: Play, tmp_path: Path) -> None:
    """It is read from files: not again at each look at hunts that run for days."""
    play(f"until [ -e {tmp_path}/enough ]; do sleep 0.01; done")
    planned = [Planned(("--builder=x", "--", "a", "b"), str(tmp_path), (("h",), ("i",)))] * 3
    tasks = tasks_of(read_batch(history, begin_batch(history, Path("/batch.toml"), planned, 1.0)), history)
    asked: list[tuple[int, str]] = []
    looks: list[float] = []

    def locked(task: Task, host: str) -> tuple[str, ...]:
        asked.append((task.place, host))
        return (host,)

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            (tmp_path / "enough").touch()
        time.sleep(seconds)

    carry_out.carry_out(tasks, history, unseen(), lambda: None, look, locked)
    assert [task.status for task in tasks] == [0, 0, 0]
    assert sorted(asked) == [(number, host) for number in range(3) for host in ("h", "i")]


CLAIMS = """
import sys, time
from pathlib import Path
from perfbisect.store.batches import claim
from perfbisect.store.history import History
claim(History.open(Path(sys.argv[1])), 1, 0)
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_hunt_that_a_process_has_claimed_is_not_started_twice(history: History, play: Play, tmp_path: Path) -> None:
    """A batch was killed, and the process of its hunt still waits for the host: the hunt has no number."""
    play(f"echo begun >>{tmp_path}/began")
    batch = plan(history, tmp_path)
    command = [sys.executable, "-c", CLAIMS, str(history.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdin and other.stdout.readline() == b"claimed\n"
        with pytest.raises(UsageError, match="Another process works on hunt 1 of batch b1"):
            claim(history, batch, 0)
        [task] = tasks_of(read_batch(history, batch), history)
        states: list[Stage] = []

        def look(_seconds: float) -> None:
            states.append(task.stage)
            assert not (tmp_path / "began").exists() or len(states) > 2
            if len(states) == 2:  # it ends without having begun the hunt, which is then begun here
                other.kill()
                other.wait()

        carry_out.carry_out([task], history, unseen(), lambda: None, look, lambda _task, host: (host,))
    assert states[:2] == [Stage.ELSEWHERE] * 2
    assert task.status == 0
    assert (tmp_path / "began").read_text() == "begun\n"
    claim(history, batch, 0)  # that of a process that has ended counts no more


def test_a_hunt_has_one_name_made_of_what_was_asked_for(history: History) -> None:
    planned = Planned(("--builder=x", "--workload=w", "--set=n=1", "--no-explain", "--", "a", "b"), "/f", (("h0",),))
    quick = Planned(("--repo=sub/clone", "--run=./run -n", "--", "a", "b"), "/f", (("h0",),))
    number = begin_batch(history, Path("/batch.toml"), [planned, quick], 1.0)
    names = [task.title for task in tasks_of(read_batch(history, number), history)]
    assert names == [title_of(planned), title_of(quick)] == ["x w a..b", "clone ./run -n a..b"]


def test_a_suspect_of_an_inconclusive_hunt_is_not_named(history: History) -> None:
    [task] = tasks_of(read_batch(history, plan(history, Path("/f"))), history)
    task.stage, task.hunt, task.status = Stage.ENDED, sample_hunt.begin(history), 2
    verdict = Inconclusive((1, 2), (0.5, 0.4), Interval(0.7, 0.8, 0.9), Reason.BUILDS_SPENT)
    history.append(task.hunt, HuntEnded(verdict), 2.0)
    assert state_of(task, history) == "inconclusive"


def test_a_batch_is_a_table_and_a_line(history: History) -> None:
    """A hunt that is not in the history yet is starting."""
    number = plan(history, Path("/f"), Path("/g"))
    enter_status(history, number, 0, 3, "it broke")
    batch = read_batch(history, number)
    lines = batch_table(batch, history, 100)
    assert lines[0] == "Batch b1 of /batch.toml"
    assert [line.split()[-1] for line in lines[2:]] == ["broke", "waiting"]
    assert batch_line(batch) == "b1: /batch.toml; 0 of 2 with a verdict"
    _, task = tasks_of(batch, history)
    task.stage, task.hosts = Stage.RUNNING, ("h0",)
    assert state_of(task, history) == "starting on h0"
    task.hunt = 1
    assert state_of(task, history) == "running on h0"
