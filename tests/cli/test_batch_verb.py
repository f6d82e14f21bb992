"""`bisect batch` and `bisect resume --all`: real hunts at once, each a process of its own."""

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import click
import pytest

import tickets
from perfbisect.cli.batch_file import read_batch_file
from perfbisect.cli.commands.batch import batch
from perfbisect.store.batches import begin_batch, enter_job
from perfbisect.store.history import History
from program import bisect, bisect_until, executable, exits, rows, run

pytestmark = pytest.mark.tools

Commit = Callable[[str], str]
HOSTS = """
[hosts.a]
address = "local"
root = "{root}/a"
[hosts.b]
address = "local"
root = "{root}/b"
"""
FILE = """
[defaults]
builder = "script"
repo = "repo"
any-host = ["a", "b"]
explain = false
layouts = false
bad = "{bad}"

[[hunt]]
good = "{good}"
workload = ["one", "two"]

[[hunt]]
good = "{good}"
workload = "one"
max-runs = 40
"""


@pytest.fixture
def file(script: Commit, tmp_path: Path) -> Path:
    """A batch of three hunts for a commit that halves a rate; recipes and hosts are beside it."""
    good, bad = script("echo rate 100"), script("echo rate 50")
    (tmp_path / "hosts.toml").write_text(HOSTS.format(root=tmp_path))
    for host in "ab":
        (tmp_path / host).mkdir()
    path = tmp_path / "three.toml"
    path.write_text(FILE.format(good=good, bad=bad))
    return path


def at_once(history: Path) -> int:
    """The largest number of hunts that had begun and not ended at one time."""
    spans = rows(history, "select session_id, min(at), max(at) from events group by session_id")
    return max(sum(began <= start < ended for _, began, ended in spans) for _, start, _ in spans)


def make_machines(hosts: Path) -> None:
    """Let each host be a machine of its own: it sees another folder for locks."""
    locks = tickets.folder()
    locks.mkdir()
    apart = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(locks)]
    hosts.write_text(hosts.read_text().replace('address = "local"', f"through = {json.dumps(apart)}"))


def test_hunts_run_at_once_and_one_that_fails_stops_no_other(file: Path, tmp_path: Path) -> None:
    make_machines(tmp_path / "hosts.toml")
    text = file.read_text()
    file.write_text(text + '[[hunt]]\ngood = "nothing"\nworkload = "one"\n')
    history, pages = tmp_path / "h.db", tmp_path / "pages"
    done = bisect("batch", str(file), "--history", str(history), "--page", str(pages), cwd=Path("/"))
    assert done.returncode == 3, done.stderr
    assert "3 of 4 hunts ended with a verdict" in done.stdout
    assert "nothing" in done.stderr and "resume" not in done.stdout
    [(found, culprits)] = rows(history, "select count(*), count(distinct commit_hash) from suspects")
    assert (found, culprits) == (3, 1)
    assert rows(history, "select status from batch_hunts order by number") == [(0,), (0,), (0,), (3,)]
    assert rows(history, "select count(distinct host) from hunts") == [(2,)]
    assert at_once(history) == 2
    for host in ("a", "b"):  # one at a time on each
        spans = rows(
            history,
            "select min(at), max(at) from events join hunts on hunts.id = session_id"
            f" where hunts.host = '{host}' group by session_id order by 1",
        )
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert {page.name for page in pages.iterdir()} == {"index.html", "hunt-1.html", "hunt-2.html", "hunt-3.html"}

    assert "No hunt is interrupted" in exits(0, "resume", "--all", "--history", str(history)), "a mistake stays one"
    assert "Going on with batch b1" in exits(3, "batch", str(file), "--history", str(history))
    assert rows(history, "select count(*) from hunts") == [(3,)]  # only the one that failed was tried
    kept = ["--history", str(history)]
    exits(0, "report", "b1", *kept, "--output", str(tmp_path / "b1"))
    assert (tmp_path / "b1" / "index.html").exists()
    exits(3, "report", "b7", *kept)
    told = exits(0, "show", "b1", *kept)
    assert f"Batch b1 of {file}" in told and told.count("found") == 3 and "failed: " in told
    assert f"b1: {file}, hunts 1, 2, 3; 3 of 4 with a verdict" in exits(0, "history", *kept)
    assert "b2 for a batch" in exits(3, "report", "k.toml", *kept)


@pytest.mark.slow
def test_interrupted_it_goes_on_with_all_hunts(file: Path, tmp_path: Path) -> None:
    """After a kill as well."""
    history = tmp_path / "h.db"
    begin = ["batch", str(file), "--history", str(history)]
    assert bisect_until(begin, "  ran ", signal.SIGKILL).returncode == -signal.SIGKILL
    stopped = bisect_until(begin, "verdict", signal.SIGINT)
    assert stopped.returncode == 130, stopped.stderr
    assert "Going on with batch b1" in stopped.stderr and "bisect batch" in stopped.stderr
    exits(0, "resume", "--all", "--history", str(history))
    assert rows(history, "select count(*), count(ended) from hunts") == [(3, 3)]
    assert "No hunt is interrupted" in exits(0, "resume", "--all", "--history", str(history))
    told = exits(0, *begin)
    assert "All hunts of batch b1 have verdicts; --anew begins them again." in told and "bisect report b1" in told


WRONG = {
    "max-runs = 40": [
        ("max-run = 40", "[[hunt]] 2: there is no key max-run.", "Did you mean 'max-runs'"),
        ('max-runs = "many"', "[[hunt]] 2, max-runs must be a whole number", 'and is "many"'),
        ("max-runs = 0", "[[hunt]] 2, max-runs: ", ""),
        ("max-runs = [1, 2]", "[[hunt]] 2, max-runs must be one value", ""),
        ('history = "x.db"', "[[hunt]] 2: history is no key of a file", "an option of `bisect batch`"),
        ("json = true", "[[hunt]] 2: json is no key of a file", "`bisect show 12 --json`"),
        ("max-runs = true", "[[hunt]] 2, max-runs must be a whole number from 1 to 1,000,000,000, and is true.", ""),
        ('any-host = ["zz"]', "[[hunt]] 2, any-host: There is no host 'zz'", "Hosts: a, b"),
        ("set = {zz = 1}", "[[hunt]] 2, set: ", "zz"),
        ('all = "yes"', "[[hunt]] 2, all must be true or false", ""),
        ('host = "c"', "[[hunt]] 2, host: There is no host 'c'", "Hosts: a, b"),
        ('slurm = ["--nice", "100"]', "[[hunt]] 2, slurm must be a list of options of sbatch", '["--constraint=quiet"'),
        ('slurm = "--nice=100"', "[[hunt]] 2, slurm must be a list of options of sbatch", ""),
        ('run = "x"', "[[hunt]] 2: --workload and --run exclude each other", ""),
    ],
    'builder = "script"': [('builder = "scrip"', "[defaults], builder: ", "script")],
    'workload = "one"': [
        ('workload = "on"', "[[hunt]] 2, workload: ", "one"),
        ("workload = []", "[[hunt]] 2, workload is an empty list, which makes no hunt.", ""),
        ('workload = []\nrun = "./run"', "[[hunt]] 2, workload is an empty list, which makes no hunt.", ""),
    ],
    'repo = "repo"': [('repo = "nowhere"', "[defaults], repo: there is no folder", "")],
    '["a", "b"]': [('["a", "d"]', "[defaults], any-host: There is no host 'd'", "")],
    "[defaults]": [("[default]", "there is no table [default]", "")],
    "explain = false": [("explain =", "is not valid TOML", "")],
}


def test_mistakes_are_told_by_table_and_key_before_anything_begins(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    for right, wrong in WRONG.items():
        for other, said, advice in wrong:
            assert right in text
            file.write_text(text.replace(right, other))
            told = exits(3, "batch", str(file), "--history", str(tmp_path / "h.db"))
            assert str(file) in told and said in told and advice in told, other
    assert not (tmp_path / "h.db").exists()
    file.write_text(re.sub(r'good = "\w+"\nworkload = "one"', 'workload = "one"', text))
    assert "[[hunt]] 2, good is missing" in exits(3, "batch", str(file))
    file.write_text(re.sub(r'bad = "\w+"\n', "", text))
    told = exits(3, "batch", str(file))
    assert "[[hunt]] 1, bad is missing" in told and 'bad = "8.0.28"' in told


def test_all_mistakes_of_a_file_are_told_at_once(file: Path) -> None:
    text = file.read_text().replace('workload = "one"', 'workload = "on"').replace("layouts = false", 'layouts = "no"')
    file.write_text(text.replace("explain = false", "explan = false").replace("max-runs = 40", "max-runs = 1.5"))
    told = exits(3, "batch", str(file))
    assert f"{file} has 3 mistakes:" in told
    assert told.count('layouts must be true or false, and is "no"') == 1
    assert "[defaults]: there is no key explan. Did you mean 'explain'" in told
    assert "[[hunt]] 2, max-runs must be a whole number from 1 to 1,000,000,000, and is the number 1.5." in told


def test_a_dry_run_prints_the_commands(file: Path, tmp_path: Path) -> None:
    _, out, _ = run("batch", str(file), "--dry-run", "--history", str(tmp_path / "h.db"))
    lines = out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("a or b: bisect run --builder=script --workload=") for line in lines)
    assert "--max-runs=40" in lines[2] and "--no-explain" in lines[2]
    assert not (tmp_path / "h.db").exists()


def test_jobs_are_shown_and_refused_by_name(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitted batch is not carried out here as well. Without Slurm it says so before anything is entered."""
    history = tmp_path / "h.db"
    kept = ["--history", str(history)]
    text = file.read_text().replace('any-host = ["a", "b"]', 'slurm = ["--nice=1 \'2"]')
    assert "names hosts, but Slurm chooses" in exits(3, "batch", str(file), "--submit", "slurm", *kept)
    file.write_text(text)
    words = exits(0, "batch", str(file), "--submit", "slurm", "--dry-run", *kept).splitlines()
    assert words[0].startswith("sbatch '--job-name=script one ") and "'--nice=1 '\"'\"'2': bisect run " in words[0]
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        assert "There is no sbatch here" in exits(3, "batch", str(file), "--submit", "slurm", *kept)
    assert not history.exists()
    with closing(History.open(history)) as opened:
        number = begin_batch(opened, file, [entry.planned for entry in read_batch_file(file)], 1.0)
    assert "b1 was not submitted" in exits(3, "batch", "b1", *kept)
    with closing(History.open(history)) as opened:
        opened.connection.execute("UPDATE batches SET process = 'ended 1 1'")
        for place in range(2):
            enter_job(opened, number, place, lambda: "12")
    executable(tmp_path / "bin" / "squeue", "#!/bin/sh\n")  # it has forgotten them
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("SLURM_CONF", os.devnull)
    shown = exits(0, "batch", "b1", *kept)
    assert shown.count("12  no longer known  not begun") == 2 and f"Submit what is left: bisect batch {file}" in shown
    assert "Its jobs: bisect batch b1" in exits(0, "show", "b1", *kept)
    assert "0 jobs cancelled" in exits(0, "batch", "b1", "--cancel", *kept)
    assert "Slurm has this batch, b1; --anew" in exits(3, "batch", str(file), *kept)
    assert "b1 is with Slurm: bisect batch b1" in exits(0, "resume", "--all", *kept)
    for wrong in (["b1", "--anew"], [str(file), "--cancel"], [str(file), "--submit", "slurm", "--page", "x"]):
        exits(3, "batch", *wrong, *kept)
    context = click.Context(batch)
    context.params["history"] = history
    assert [item.value for item in batch.params[0].shell_complete(context, "b")] == ["b", "b1"]


def test_a_job_whose_node_has_another_history_begins_the_hunt_there(file: Path, tmp_path: Path) -> None:
    """A batch of that number there is another one."""
    history = tmp_path / "other.db"
    with closing(History.open(history)) as opened:
        entries = read_batch_file(file)
        begin_batch(opened, file, [entry.planned for entry in entries], 1.0)
    words = ["--history", str(history), "--plain", "--host=a", *entries[0].planned.arguments]
    assert "does not have the batch of this job" in exits(0, "run", "--in-batch=1:0:12", *words)
    assert rows(history, "select hunt_id, status from batch_hunts") == [(None, None)] * 3
