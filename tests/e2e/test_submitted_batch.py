"""A batch whose hunts are jobs of a real Slurm: they wait, depend on each other, are cancelled, and go on."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from central import served
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import slurm as commands
from perfbisect.hunt.submission import SCRIPT, Job
from perfbisect.store.batches import Planned
from postgres import needs_postgres
from program import bisect, executable, exits
from slurm import NEEDED, Slurm
from small_hunt import RATE, Hunt
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tools, *NEEDED]

FILE = r"""
[defaults]
good = "v0"
bad = "v3"
repo = "repo"
build = "make"
run = "./bench"
rate = '{rate}'
layouts = false
explain = false
pairing = "turns"
slurm = ["--constraint=both", "--job-name=in turn", "--dependency=singleton", "--comment=it's \"$(so)\"\n#SBATCH --hold"]
[[hunt]]
[[hunt]]
max-time = "2h"
[[hunt]]
bad = "no\n#SBATCH --hold\n$(such)"
max-time = "3h"
host = "slurm:quiet"
slurm = [{third}]
"""


@pytest.fixture
def team(seal: Path) -> Iterator[str]:
    """The address of a central history, which is that of this user."""
    with served() as server:
        address, place = server.create("team"), seal / ".config" / "perfbisect"
        place.mkdir(parents=True)
        (place / "config.toml").write_text(f'[central]\naddress = "{address}"\norigin = "here"\n')
        yield address


@needs_postgres
@pytest.mark.slow
def test_jobs_wait_are_cancelled_and_go_on(slurm: Slurm, team: str, tmp_path: Path) -> None:
    folder = tmp_path / "it's a\n$(folder)"
    folder.mkdir()
    hunt = Hunt(folder, f'[hosts.local]\nroot = "{slurm.roots}/perfbisect"\n', commits=4, culprit=2, pause=0.05)
    file, kept, logs = folder / "f.toml", hunt.kept("it's %j.db"), folder / "it's %j-batches" / "b1"

    def submitted(third: str) -> str:
        file.write_text(FILE.format(rate=RATE, third=third))
        done = bisect("batch", str(file), "--submit", "slurm", *kept)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows() -> list[str]:
        return exits(0, "batch", "b1", *kept).splitlines()[2:5]

    assert "3 hunts submitted." in submitted('"--hold", "--job-name=third"')
    first, second, third = rows()
    assert "PENDING (Dependency)" in second and "PENDING (JobHeldUser)" in third
    assert slurm.run("squeue", "--noheader", "--name=third", "--format=%f %l %h").split() == ["quiet", "4:00:00", "NO"]
    assert "0 hunts submitted, 3 kept" in submitted('"--hold"')
    assert len(slurm.jobs()) == 2  # by their names: no job was added

    until(lambda: (folder / kept[1]).exists() and hunt.ask("select * from runs", kept[1]))
    assert "carried out by job" in exits(3, "resume", "1", *kept)
    assert "3 jobs cancelled." in exits(0, "batch", "b1", "--cancel", *kept)
    until(lambda: not slurm.run("squeue", "--noheader"))
    first, second, third = rows()
    assert first.endswith("CANCELLED  interrupted") and second.endswith("CANCELLED  not begun")
    assert "Interrupted. What was measured is kept" in (logs / "1.log").read_text()
    before = hunt.ask("select event_id from runs", kept[1])

    assert "3 hunts submitted." in submitted('"--nice=1"')
    until(lambda: not slurm.run("squeue", "--noheader"))
    *well, third = rows()
    assert all("COMPLETED  found" in row for row in well)
    assert "FAILED" in third and "$(such)' is neither a release nor a revision" in third
    assert f"its output is {logs / '3.log'}" in exits(0, "batch", "b1", *kept)
    assert hunt.ask("select culprit from culprits", kept[1]) == [(hunt.culprit,)] * 2
    assert hunt.ask("select count(*) from sittings group by session_id", kept[1]) == [(2,), (1,)]
    assert {*before} < {*hunt.ask("select event_id from runs where session_id = 1", kept[1])}
    there = exits(0, "query", "select hunt_id, culprit from culprits", "--csv", "--from", team).splitlines()[1:]
    assert there == [f"here:1,{hunt.culprit}", f"here:2,{hunt.culprit}"]
    assert "1 hunt submitted, 2 kept" in submitted('"--hold"')
    assert "2 of 3 with a verdict" in exits(0, "history", *kept)
    exits(0, "batch", "b1", "--cancel", *kept)


def test_words_reach_a_job_as_they_are(slurm: Slurm, tmp_path: Path) -> None:
    """Its log, too, has the name that it shall have; and no word of a hunt is an option of sbatch."""
    folder = tmp_path / "it's a\n$(folder)"
    with pytest.raises(EnvironmentFailure, match=r"sbatch of Slurm has failed: .*partition"):
        commands.submit(["--partition"], SCRIPT, [])  # without its value
    hostile = ["a b", "'\"\n#SBATCH --hold\n", "$(touch x)`touch x`", "", "%j\\", ":", "--hold", ".", "é;|*"]
    folder.mkdir()
    log = folder / "logs" / "%j\\ $(touch x).log"
    job = Job(Planned((*hostile, "no\n#SBATCH --hold", "$(bad)"), str(folder), (("local",),)), ("--comment=a\n'b",), 0)
    arguments = job.arguments(log, "3:0", tmp_path / "h '.db")
    arguments[3] = str(executable(tmp_path / "python", '#!/bin/sh\nprintf "%s\\0" "$PWD" "$@"\n'))  # prints its words
    number = commands.submit(job.words(), SCRIPT, arguments)
    until(lambda: not commands.states([number])[number].is_open)
    assert str(commands.states([number])[number]) == "COMPLETED"
    checked, ran = ([*part.split("\0")] for part in log.read_text().split(f"{folder}\0")[1:])
    assert checked == ["-P", "-c", "import perfbisect.cli.main", ""]
    history = str(tmp_path / "h '.db")
    begun = ["run", f"--in-batch=3:0:{number}", "--history", history, "--wait", "--plain", "--host=local"]
    assert ran[3:] == [*begun, *job.planned.arguments, ""]
    assert {each.name for each in folder.iterdir()} == {"logs"}


def test_what_slurm_does_not_know_and_refuses(slurm: Slurm) -> None:
    assert commands.states(["4000000"]) == {}
    with pytest.raises(EnvironmentFailure, match=r"sbatch of Slurm has failed: .*Invalid feature specification"):
        commands.submit(["--constraint=nosuch"], SCRIPT, [])


@pytest.mark.slow
def test_before_its_time_limit_a_job_is_told_to_stop(slurm: Slurm, tmp_path: Path) -> None:
    """Not its script, which a shell would end after the hunt alone. Slurm looks at its limits each half minute."""
    job = Job(Planned(("a", "b"), str(tmp_path), (("local",),)), ("--time=1",), 0)
    arguments = job.arguments(tmp_path / "log", "3:0", tmp_path / "h.db")
    arguments[3] = str(
        executable(tmp_path / "python", "#!/bin/sh\ncase $3 in import*) exit ;; esac\nexec sleep 1000\n")
    )
    number = commands.submit(job.words(), SCRIPT, arguments)
    until(lambda: not commands.states([number])[number].is_open)
    assert commands.states([number])[number].status == 128 + signal.SIGTERM
