"""`bisect batch` and `bisect resume --all`: each hunt has its own process, and a failed hunt stops no other hunt."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

import sample_hunt
import tickets
from perfbisect.cli.commands.batch import batch as batch_verb
from perfbisect.cli.commands.batch import read_batch_file
from perfbisect.cli.commands.history import batch_line
from perfbisect.cli.commands.report import batch_lines
from perfbisect.cli.sessions import run_and_print_hunts
from perfbisect.core.domain.events import SessionEnded
from perfbisect.core.domain.orders import Inconclusive, Interval, Reason
from perfbisect.errors import EnvironmentFailure, Interrupted, UsageError
from perfbisect.hunt import batch as carry_out
from perfbisect.hunt.batch import Stage, Task, locked_hosts, state_text, tasks_of, title_of
from perfbisect.store.batches import (
    PlannedHunt,
    begin_batch,
    claim_batch_hunt,
    end_batch,
    enter_batch_hunt_status,
    read_batch,
    update_batch_hunt,
)
from perfbisect.store.history import History
from perfbisect.ui.lines import PlainLines
from perfbisect.ui.session_view import SessionRow
from program import bisect, executable, exits, rows, run

HERE = Path(__file__).parent
Play = Callable[[str], None]


@pytest.fixture
def file(script: Callable[[str], str], tmp_path: Path) -> Path:
    """A batch file with three hunts for a commit that halves a rate. Recipes and `hosts.toml` are in its folder."""
    text = (HERE / "batch.toml").read_text()
    for end, rate in {"good": 100, "bad": 50}.items():
        text = text.replace(f"{{{end}}}", script(f"echo rate {rate}"))
    for host in "ab":
        (tmp_path / host).mkdir()
    hosts = [f'[hosts.{host}]\naddress = "local"\nroot = "{tmp_path}/{host}"\n' for host in "ab"]
    (tmp_path / "hosts.toml").write_text("".join(hosts))
    path = tmp_path / "three.toml"
    path.write_text(text)
    return path


def make_machines(hosts: Path) -> None:
    """Make each host a separate machine: each host gets its own folder for lock files."""
    locks = tickets.folder()
    locks.mkdir()
    apart = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(locks)]
    hosts.write_text(hosts.read_text().replace('address = "local"', f"through = {json.dumps(apart)}"))


@pytest.mark.slow
@pytest.mark.tools
def test_batch_runs_hunts_in_parallel_and_continues_after_a_failure(file: Path, tmp_path: Path) -> None:
    make_machines(tmp_path / "hosts.toml")
    text = file.read_text().replace('["one", "two"]', '"two"')
    file.write_text(text + '[[hunt]]\ngood = "nothing"\nworkload = "one"\n')
    history, pages = tmp_path / "h.db", tmp_path / "pages"
    kept = ["--history", str(history)]
    done = bisect("batch", str(file), *kept, "--page", str(pages), cwd=Path("/"))
    assert done.returncode == 3, done.stderr
    assert "2 of 3 hunts ended with a verdict" in done.stdout
    assert "nothing" in done.stderr and "resume" not in done.stdout
    assert rows(history, "select count(*), count(distinct commit_hash) from suspects") == [(2, 1)]
    assert rows(history, "select status from batch_hunts order by number") == [(0,), (0,), (3,)]
    assert rows(history, "select count(distinct host) from hunts") == [(2,)]
    (_, end), (begin, _) = rows(history, "select min(at), max(at) from events group by session_id order by 1")
    assert begin < end, "the second hunt began before the first hunt ended"
    assert {page.name for page in pages.iterdir()} == {"index.html", "hunt-1.html", "hunt-2.html"}

    assert "No hunt is interrupted" in exits(0, "resume", "--all", *kept), "no interruption"
    assert "Continuing batch b1" in exits(3, "batch", str(file), *kept)
    assert rows(history, "select count(*) from hunts") == [(2,)]  # only the failed hunt was started again
    shown = exits(0, "show", "b1", *kept)
    assert f"Batch b1 of {file}" in shown and shown.count("found") == 2 and "failed: " in shown
    assert f"b1: hunts 1, 2 of {file}; 2 of 3 have a verdict" in exits(0, "history", *kept)


def test_batch_file_mistakes_are_reported_before_any_hunt_starts(file: Path, tmp_path: Path) -> None:
    """batch_mistakes.txt lists mistakes and their messages. One error reports all mistakes of a file."""
    text = (HERE / "batch.toml").read_text()
    table = re.findall(r"^-(.*)\n\+(.*)\n((?:    .*\n?)+)", (HERE / "batch_mistakes.txt").read_text(), re.MULTILINE)
    assert len(table) > 20
    for right, wrong, parts in table:
        assert right in text
        file.write_text(text.replace(right, wrong))
        errors = exits(3, "batch", str(file), "--history", str(tmp_path / "h.db"))
        assert str(file) in errors and [part for part in parts.splitlines() if part[4:] not in errors] == [], wrong
    assert not (tmp_path / "h.db").exists()
    text = text.replace('workload = "one"', 'workload = "on"').replace("layouts = false", 'layouts = "no"')
    file.write_text(text.replace("explain = false", "explan = false").replace("max-runs = 40", "max-runs = 1.5"))
    errors = exits(3, "batch", str(file))
    assert f"{file} has 3 mistakes:" in errors
    assert errors.count('layouts` is "no", but must be true or false') == 1
    assert "`defaults.explan` is an unknown key. Did you mean 'explain'" in errors
    assert "`hunt 2.max-runs` is the number 1.5, but must be a whole number from 1 to 1,000,000,000." in errors


def test_batch_dry_run_prints_the_commands(file: Path, tmp_path: Path) -> None:
    _, out, _ = run("batch", str(file), "--dry-run", "--history", str(tmp_path / "h.db"))
    begin = "on a or b: bisect run --builder=script --workload="
    assert [line.startswith(begin) for line in out.splitlines()] == [True] * 3
    assert "--max-runs=40" in out.splitlines()[2] and "--no-explain" in out.splitlines()[2]
    assert not (tmp_path / "h.db").exists()


def test_submitted_batch_is_shown_and_cancelled(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch submitted to Slurm is not also run on this machine. Without Slurm, nothing is written to the history."""
    history = tmp_path / "h.db"
    kept = ["--history", str(history)]
    slurm = ["batch", str(file), "--submit", "slurm", *kept]
    text = file.read_text().replace('any-host = ["a", "b"]', 'slurm = ["--nice=1 \'2"]')
    assert "names hosts, but Slurm chooses" in exits(3, *slurm)
    file.write_text(text)
    words = exits(0, *slurm, "--dry-run").splitlines()
    assert words[0].startswith("sbatch '--job-name=script one ") and "'--nice=1 '\"'\"'2': bisect run " in words[0]
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        assert "This machine has no sbatch" in exits(3, *slurm)
    assert not history.exists()
    with closing(History.open(history)) as opened:
        number = begin_batch(opened, file, [entry.planned for entry in read_batch_file(file)], 1.0)
        assert "b1 has no Slurm jobs" in exits(3, "batch", "b1", *kept)
        opened.connection.execute("UPDATE batches SET process = 'ended 1 1'")
        for place in range(2):
            update_batch_hunt(opened, number, place, job="12", status=None, failure=None)
    executable(tmp_path / "bin" / "squeue", "#!/bin/sh\n")  # Slurm no longer knows the jobs
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("SLURM_CONF", os.devnull)
    shown = exits(0, "batch", "b1", *kept)
    assert (
        shown.count("12  unknown to Slurm  not begun") == 2
        and f"To submit the hunts without a verdict again: bisect batch {file}" in shown
    )
    assert "To see its Slurm jobs: bisect batch b1" in exits(0, "show", "b1", *kept)
    assert "0 jobs cancelled" in exits(0, "batch", "b1", "--cancel", *kept)
    assert "submitted to Slurm, as batch b1. To begin all hunts anew, add --anew" in exits(3, "batch", str(file), *kept)
    assert "Batch b1 was submitted to Slurm. To see its jobs: bisect batch b1" in exits(0, "resume", "--all", *kept)
    for wrong in (["b1", "--anew"], [str(file), "--cancel"], [str(file), "--submit", "slurm", "--page", "x"]):
        exits(3, "batch", *wrong, *kept)
    context = click.Context(batch_verb)
    context.params["history"] = history
    assert [item.value for item in batch_verb.params[0].shell_complete(context, "b")] == ["b", "b1"]


@pytest.mark.tools
def test_slurm_job_starts_its_hunt_if_the_history_lacks_the_batch(file: Path, tmp_path: Path, history: History) -> None:
    """The history of a node may have another batch with the same number."""
    entries = read_batch_file(file)
    begin_batch(history, file, [entry.planned for entry in entries], 1.0)
    words = ["--history", str(history.path), "--plain", "--host=a", *entries[0].planned.arguments]
    assert "does not contain the batch of this job" in exits(0, "run", "--in-batch=1:0:12", *words)
    assert rows(tmp_path / "h.db", "select hunt_id, status from batch_hunts") == [(None, None)] * 3
    for place in range(3):
        enter_batch_hunt_status(history, 1, place, 0)
    end_batch(history, 1, 2.0)
    output = exits(0, "batch", str(file), "--history", str(history.path))
    assert (
        "All hunts of batch b1 have verdicts. To begin all hunts anew, add --anew." in output
        and "bisect report b1" in output
    )


# In the tests below, shell scripts replace the hunts.


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(History.open(tmp_path / "h.db")) as opened:
        yield opened


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """``play(script)`` runs a shell script, with the arguments of `bisect`, instead of each hunt, and polls often."""
    monkeypatch.setattr(carry_out, "POLL_SECONDS", 0.02)
    return lambda script: monkeypatch.setattr(carry_out, "PROGRAM", ("sh", "-c", script, "sh"))


def unseen() -> PlainLines:
    """A view whose output is discarded."""
    return PlainLines(io.StringIO(), {})


def begun(history: History, planned: Sequence[PlannedHunt]) -> int:
    return begin_batch(history, Path("/batch.toml"), planned, 1.0)


def tasks(history: History, *batches: int) -> list[Task]:
    return [task for batch in batches for task in tasks_of(read_batch(history, batch), history)]


def plan(history: History, *folders: Path) -> int:
    """Store a batch with one hunt for each folder. Hunt number n uses host hn: h0, h1, …"""
    return begun(
        history, [PlannedHunt(WORDS, str(folder), ((f"h{number}",),)) for number, folder in enumerate(folders)]
    )


def carried_out(history: History, *batches: int) -> int:
    """Run the hunts of these batches, and return the exit status."""
    return run_and_print_hunts(tasks(history, *batches), history, Path("of $mine.db"), "again", view=unseen())


def ends(history: History, batch: int) -> list[tuple[int | None, str]]:
    """The status and the failure text of each hunt of a batch."""
    return [(hunt.status, hunt.failure) for hunt in read_batch(history, batch).hunts]


def test_batch_continues_after_a_kill_and_a_missing_folder(
    history: History, play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command that writes the pages is quoted for a shell."""
    play('case "$*" in *--host=h0*) kill -9 $$;; esac; sleep 0.2')
    batch = plan(history, tmp_path, tmp_path / "gone", tmp_path)
    assert carried_out(history, batch) == 128 + 9
    printed = capsys.readouterr()
    assert "failed: killed by signal 9" in printed.err
    assert "To write their pages: bisect report b1 --history 'of $mine.db'\n" in printed.out
    killed, gone, other = ends(history, batch)
    assert (killed, other) == ((137, "killed by signal 9"), (0, ""))
    assert gone[0] == 4 and str(tmp_path / "gone") in gone[1]


def test_interrupted_batch_reports_how_many_hunts_ended(history: History, play: Play, tmp_path: Path) -> None:
    play('case "$*" in *--host=h0*) exit 4;; *--host=h1*) exit 0;; esac; trap "" INT; exec sleep 5')
    carried = tasks(history, plan(history, *[tmp_path] * 4))

    class Stopped(PlainLines):
        def set_rows(self, rows: Sequence[SessionRow]) -> None:
            if sum(task.stage is Stage.ENDED for task in carried) == 2:
                raise KeyboardInterrupt

    with pytest.raises(
        Interrupted, match=r"2 hunts of 4 had ended, 1 of them without a verdict\. .* To continue: again"
    ):
        run_and_print_hunts(carried, history, None, "again", view=Stopped(io.StringIO(), {}))
    assert [task.process.returncode for task in carried[2:] if task.process] == [-signal.SIGTERM] * 2, "both ended"


def test_hunt_that_fails_to_start_has_no_verdict(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If Python cannot import the program, Python exits with status 1, which is also the status of a verdict."""
    monkeypatch.setattr(carry_out, "PROGRAM", (sys.executable, "-c", "import perfbisect.gone"))
    batch = plan(history, tmp_path)
    assert carried_out(history, batch) == 4
    assert ends(history, batch) == [(4, "ModuleNotFoundError: No module named 'perfbisect.gone'")]
    assert "0 of 1 hunt ended with a verdict" in capsys.readouterr().out
    task = Task("", (), "", ((),), "", hunt=sample_hunt.begin(history), stage=Stage.RUNNING)
    carry_out.note_end(task, 1, history)
    assert task.status == 4, "a resumed hunt that fails to start has no verdict either"


def test_batch_continues_after_a_hunt_with_damaged_history_rows(
    history: History, play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play("sleep 0.2")
    batch = plan(history, tmp_path, tmp_path, tmp_path)
    damaged = Mock(side_effect=EnvironmentFailure("table hunts is damaged"))
    for method in ("session_summary", "settings"):
        monkeypatch.setattr(history, method, damaged)
    history.connection.execute("PRAGMA foreign_keys = OFF")
    update_batch_hunt(history, batch, 1, hunt_id=999)  # damaged before the hunt is resumed
    assert carried_out(history, batch) == 4
    assert ends(history, batch) == [(0, ""), (4, "table hunts is damaged"), (0, "")]
    enter_batch_hunt_status(history, batch, 1, 0)  # the hunt has a verdict
    assert carried_out(history, batch) == 0
    task = Task("", (), "", ((),), "", hunt=999, stage=Stage.ELSEWHERE)
    carry_out.follow(task, history, unseen(), {})  # damaged while another process works on it
    assert (task.stage, task.status, task.failure) == (Stage.ENDED, 4, "table hunts is damaged")
    damaged.assert_called_with(999)


def test_batches_have_separate_logs_and_report_only_new_errors(history: History, play: Play, tmp_path: Path) -> None:
    play('echo "Error: of ${7#*:} in batch ${7%:*}"; exit 4')
    batches = [plan(history, tmp_path) for _ in range(2)]
    assert carried_out(history, *batches) == 4
    for batch in batches:
        assert ends(history, batch) == [(4, f"of 0 in batch {batch}")]
        assert (tmp_path / "h-batches" / f"b{batch}" / "1.log").read_text() == f"Error: of 0 in batch {batch}\n"
    play("exit 4")
    carried_out(history, batches[0])
    assert ends(history, batches[0]) == [(4, "")]


def test_batch_reads_the_locked_hosts_of_each_hunt_once(history: History, play: Play, tmp_path: Path) -> None:
    """Each poll would read files again. A hunt need not wait for a leased build host."""
    play(f"until [ -e {tmp_path}/enough ]; do sleep 0.01; done")
    carried = tasks(history, begun(history, [PlannedHunt(WORDS, str(tmp_path), (("h",), ("i",)))] * 3))
    locked, looks = Mock(side_effect=lambda _, host: (host,)), list[float]()

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            (tmp_path / "enough").touch()
        time.sleep(seconds)

    carry_out.carry_out(carried, history, unseen(), lambda: None, look, locked)
    assert [task.status for task in carried] == [0, 0, 0]
    asked = sorted((call.args[0].number, call.args[1]) for call in locked.call_args_list)
    assert asked == [(number, host) for number in range(3) for host in ("h", "i")]
    shutil.copy(HERE / "hosts" / "building.toml", tmp_path / "hosts.toml")
    assert locked_hosts(Task("", (), str(tmp_path), (("a",),), ""), "a") == ("a", "c")


WORDS = ("--builder=x", "--", "a", "b")
CLAIMS = """
import sys, time
from pathlib import Path
from perfbisect.store.batches import claim_batch_hunt
from perfbisect.store.history import History
claim_batch_hunt(History.open(Path(sys.argv[1])), 1, 0)
print("claimed", flush=True)
sys.stdin.read()
"""


def test_hunt_that_another_process_has_claimed_is_not_started(history: History, play: Play, tmp_path: Path) -> None:
    """A batch was killed. Its child process still waits for a host, and so the hunt has no number yet."""
    play(f"echo begun >>{tmp_path}/began")
    batch = plan(history, tmp_path)
    command = [sys.executable, "-c", CLAIMS, str(history.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdin and other.stdout.readline() == b"claimed\n"
        with pytest.raises(UsageError, match="Another process works on hunt 1 of batch b1"):
            claim_batch_hunt(history, batch, 0)
        [task] = tasks(history, batch)
        states: list[Stage] = []

        def look(_seconds: float) -> None:
            states.append(task.stage)
            assert not (tmp_path / "began").exists() or len(states) > 2
            if len(states) == 2:  # the claiming process dies, so that this batch starts the hunt
                other.kill()
                other.wait()

        carry_out.carry_out([task], history, unseen(), lambda: None, look, lambda _task, host: (host,))
    assert states[:2] == [Stage.ELSEWHERE] * 2
    assert (task.status, (tmp_path / "began").read_text()) == (0, "begun\n")
    claim_batch_hunt(history, batch, 0)  # the claim of a process that has ended does not count


def test_batch_views_name_hunts_by_their_options_and_show_their_state(history: History) -> None:
    """All views use the same title of a hunt. A hunt that is not yet in the history is starting."""
    words = ("--builder=x", "--workload=w", "--set=n=1", "--no-explain", "--", "a", "b")
    every = (words, ("--repo=sub/clone", "--run=./run -n", "--", "a", "b"))
    planned = [PlannedHunt(words_of_hunt, "/f", (("h0",),)) for words_of_hunt in every]
    number = begun(history, planned)
    enter_batch_hunt_status(history, number, 0, 3, "it broke")
    batch = read_batch(history, number)
    broken, task = tasks(history, number)
    assert [broken.title, task.title] == [*map(title_of, planned)] == ["x w a..b", "clone ./run -n a..b"]
    lines = batch_lines(batch, history, 100)
    assert lines[0] == "Batch b1 of /batch.toml"
    assert [line.split()[-1] for line in lines[2:]] == ["broke", "waiting"]
    assert batch_line(batch) == "b1: no hunt of /batch.toml; 0 of 2 have a verdict"
    task.stage, task.hosts = Stage.RUNNING, ("h0",)
    assert state_text(task, history) == "starting on h0"
    task.hunt = sample_hunt.begin(history)
    assert state_text(task, history) == "running on h0"
    task.stage, task.status = Stage.ENDED, 2
    verdict = Inconclusive((1, 2), (0.5, 0.4), Interval(0.7, 0.8, 0.9), Reason.BUILDS_SPENT)
    history.append(task.hunt, SessionEnded(verdict), 2.0)
    assert state_text(task, history) == "inconclusive", "a hunt with a candidate of 50 % names no culprit"
