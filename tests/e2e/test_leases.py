"""Hosts that are leased from a real Slurm and from a real labgrid, and batches whose hunts are Slurm jobs."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from central import served
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import leases
from perfbisect.hunt.slurm import SCRIPT, SlurmJob, job_states, sbatch
from perfbisect.recipes.inventory import load_lease
from perfbisect.store.batches import PlannedHunt
from postgres import needs_postgres
from program import Process, bisect, bisect_until, bisect_watched, executable, exits
from slurm import Slurm, why_not
from small_hunt import RATE, Hunt
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow, pytest.mark.xdist_group("leases")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if reason := why_not():
        pytest.skip(f"a real Slurm: {reason}")
    made = Slurm()
    yield made
    made.end()


@pytest.fixture
def slurm(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The cluster, without jobs at the start."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    yield cluster
    assert cluster.jobs() in ({}, {"other": "RUNNING"})
    cluster.cancel()


@pytest.fixture
def hunt(cluster: Slurm, tmp_path: Path) -> Hunt:
    """A hunt on machines of the shipped lease recipe, which are of one host class."""
    entries = (
        '[leases.slurm]\nextends = "slurm"\nevery = 3\n'
        f'[leases.slurm.host]\nroot = "{cluster.roots}/perfbisect"\nclass = "node"\njobs = 1\n'
    )
    return Hunt(tmp_path, entries, pause=0.2)


def words(hunt: Hunt, *hosts: str, history: str = "h.db") -> list[str]:
    """The arguments of a hunt on these hosts."""
    return hunt.words("--json", *(word for host in hosts for word in ("--host", host)), history=history)


def ours(slurm: Slurm) -> dict[str, str]:
    return {name: state for name, state in slurm.jobs().items() if name != "other"}


def records(seal: Path) -> list[str]:
    return [path.name for path in (seal / ".local/state/perfbisect/leases").glob("*.json")]


def test_hunt_waits_for_a_leased_node_and_releases_the_node(slurm: Slurm, seal: Path, hunt: Hunt) -> None:
    """At first another job has the node. The hunt prints that it waits."""
    slurm.occupy("quiet")
    seen = []

    def free(line: str, _: Process) -> None:
        if "Waiting for slurm:quiet: PENDING" in line:
            seen.append((ours(slurm), records(seal)))
            slurm.cancel("other")

    done = bisect_watched(words(hunt, "slurm:quiet"), free)
    hunt.check(done)
    [[waiting, noted]] = seen
    assert [*waiting.values()] == ["PENDING"]
    assert noted == [f"{name}.json" for name in waiting]
    assert "slurm:quiet is leased, after" in done.stderr
    started = json.loads(next(line for line in done.stdout.splitlines() if '"HuntStarted"' in line))
    assert (started["host"]["name"], started["host"]["settings"]["node"]) == ("slurm:quiet", "n1")
    assert (slurm.jobs(), records(seal)) == ({}, [])


def test_hunt_stops_when_its_lease_ends_and_can_be_resumed(slurm: Slurm, seal: Path, hunt: Hunt) -> None:
    """The resumed hunt waits for the same node, and keeps the runs that were made."""
    done = bisect_until(words(hunt, "slurm:quiet"), '"RunFinished"', lambda _: slurm.cancel())
    assert done.returncode == 4, done.stdout + done.stderr
    assert "the lease of host slurm:quiet (n1) has ended" in done.stderr
    assert records(seal) == []
    before = hunt.ask("select event_id from runs")
    assert before

    slurm.occupy("other")
    again = bisect_until(hunt.resumed(), "slurm:quiet", lambda _: None)
    hunt.check(again)
    assert set(before) < set(hunt.ask("select event_id from runs"))
    assert "its node was" not in again.stdout


def test_next_session_releases_the_lease_of_a_killed_session(slurm: Slurm, seal: Path, hunt: Hunt) -> None:
    killed = bisect_until(words(hunt, "slurm:quiet"), '"RunFinished"', signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    [left] = ours(slurm)
    assert records(seal) == [f"{left}.json"]
    told = bisect("hosts")
    assert f"job {left}," in told.stdout
    assert "Its session has ended. To release the machine: bisect gc" in told.stdout

    again = bisect(*hunt.resumed())
    hunt.check(again)
    assert f"job {left}," in again.stderr
    assert "is released now, because the session that leased it has ended" in again.stderr
    assert (slurm.jobs(), records(seal)) == ({}, [])


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_queued_request_is_cancelled(slurm: Slurm, seal: Path, hunt: Hunt, how: signal.Signals, status: int) -> None:
    """An interrupted session cancels its request at once. After a kill, `bisect gc` cancels the request."""
    slurm.occupy("quiet")
    done = bisect_until(words(hunt, "slurm:quiet"), "Waiting for slurm:quiet", how)
    assert done.returncode == status, done.stderr
    assert len(ours(slurm)) == len(records(seal)) == (how is signal.SIGKILL)
    bisect("gc")
    assert (ours(slurm), records(seal)) == ({}, [])


def test_hunt_continues_on_the_other_node_if_a_node_goes_down(slurm: Slurm, seal: Path, hunt: Hunt) -> None:
    """Both nodes belong to one job. The rest of the job is released after the verdict."""
    seen: list[str] = []
    # Without accounting, Slurm refuses to renew a job that has lost a node: the lease lasts for ten renewal periods.
    inventory = hunt.folder / "hosts.toml"
    inventory.write_text(inventory.read_text().replace("every = 3", "every = 15"))

    def down(line: str, _: Process) -> None:
        if '"RunFinished"' in line and '"host":"slurm:both/2"' in line and not seen:
            seen.append(line)
            slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")

    try:
        done = bisect_watched(words(hunt, "slurm:both*2"), down)
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")
    hunt.check(done)
    assert "host slurm:both/2 takes no further part: the lease of host slurm:both/2 (n2) has ended" in done.stdout
    assert (slurm.jobs(), records(seal)) == ({}, [])
    slurm.wait_idle()


KILLED = """
import sys
from perfbisect.host.leases import LeaseRequest, lease_machines
from perfbisect.recipes.inventory import LeaseEntry
import msgspec, time
lease = msgspec.json.decode(sys.stdin.buffer.read(), type=LeaseEntry)
with lease_machines(LeaseRequest(lease, "both", ("a", "b")), print, print):
    print("leased", flush=True)
    time.sleep(1000)
"""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


VERBS = ("acquire", "status", "renew", "release")


def test_leases_by_ssh_and_by_srun_use_the_same_commands() -> None:
    by_ssh, by_srun = load_lease("slurm-ssh"), load_lease("slurm")
    assert all(getattr(by_ssh, verb) == getattr(by_srun, verb) for verb in VERBS)


def test_lease_of_a_killed_session_without_records_ends(slurm: Slurm, seal: Path) -> None:
    """The user is no Slurm operator: the job has a time limit from the start, which the user cannot raise."""
    shipped = load_lease("slurm")
    commands = {verb: [*NOBODY, *getattr(shipped, verb)] for verb in VERBS}
    lease = msgspec.structs.replace(shipped, every=1, **commands)
    with subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        assert session.stdin
        assert session.stdout
        session.stdin.write(msgspec.json.encode(lease))
        session.stdin.close()
        assert any(line == b"leased\n" for line in session.stdout)
        [(job, state)] = ours(slurm).items()
        assert state == "RUNNING"
        time.sleep(15)  # the session renews the lease
        assert ours(slurm) == {job: "RUNNING"}
        assert slurm.run("squeue", "--noheader", "--format=%l %u") == "1-00:00:00 nobody\n"
        number = slurm.run("squeue", "--noheader", "--format=%A").strip()
        raised = [*NOBODY, "scontrol", "update", f"jobid={number}", "timelimit=UNLIMITED"]
        refused = subprocess.run(raised, capture_output=True, text=True, check=False)
        assert "denied" in refused.stderr
        session.kill()
    shutil.rmtree(seal)
    until(lambda: not slurm.jobs())


def test_time_limit_of_a_lease_depends_on_hunt_and_partition(slurm: Slurm, seal: Path) -> None:
    """One hour more than the hunt may last, or a day; at most the partition's limit. SALLOC_TIMELIMIT goes first."""
    lease = load_lease("slurm")

    def limit(minutes: float) -> str:
        slurm.wait_idle()  # the previous lease is listed until its node is free
        with leases.lease_machines(
            leases.LeaseRequest(lease, "quiet", ("a",), minutes=minutes), lambda *_: None, print
        ):
            return slurm.run("squeue", "--noheader", "--format=%l").strip()

    assert (limit(0), limit(90)) == ("1-00:00:00", "2:30:00")
    try:
        slurm.run("scontrol", "update", "partitionname=bench", "maxtime=08:00:00")
        assert (limit(0), limit(90), limit(900)) == ("8:00:00", "2:30:00", "8:00:00")
        slurm.run("scontrol", "update", "partitionname=bench", "maxtime=1-12:00:00")
        assert limit(0) == "1-00:00:00"
    finally:
        slurm.run("scontrol", "update", "partitionname=bench", "maxtime=unlimited")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SALLOC_TIMELIMIT", "45")
        assert limit(90) == "45:00"


def test_failed_lease_is_reported_with_the_error_of_salloc(slurm: Slurm, seal: Path, hunt: Hunt) -> None:
    done = bisect(*words(hunt, "slurm:nosuchfeature"))
    assert done.returncode == 4
    assert (
        "slurm:nosuchfeature cannot be leased: salloc: error: Job submit/allocate failed: Invalid feature"
        in done.stderr
    )
    assert (slurm.jobs(), records(seal)) == ({}, [])


FILE = (Path(__file__).parent / "programs" / "batch.toml").read_text()


@pytest.fixture
def team(seal: Path) -> Iterator[str]:
    """The URL of a central history, which the user's configuration names."""
    with served() as server:
        address, place = server.create("team"), seal / ".config" / "perfbisect"
        place.mkdir(parents=True)
        (place / "config.toml").write_text(f'[central]\naddress = "{address}"\norigin = "here"\n')
        yield address


@needs_postgres
def test_jobs_of_a_batch_wait_are_cancelled_and_continue(slurm: Slurm, team: str, tmp_path: Path) -> None:
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
    assert "0 hunts submitted; 3 not submitted again" in submitted('"--hold"')
    assert len(slurm.jobs()) == 2  # as the names show, no job was added

    until(lambda: (folder / kept[1]).exists() and hunt.ask("select * from runs", kept[1]))
    assert "carried out by job" in exits(3, "resume", "1", *kept)
    assert "3 jobs cancelled." in exits(0, "batch", "b1", "--cancel", *kept)
    until(lambda: not slurm.run("squeue", "--noheader"))
    first, second, third = rows()
    assert first.endswith("CANCELLED  interrupted") and second.endswith("CANCELLED  not begun")
    assert "Interrupted. All measurements are kept" in (logs / "1.log").read_text()
    before = hunt.ask("select event_id from runs", kept[1])

    assert "3 hunts submitted." in submitted('"--nice=1"')
    until(lambda: not slurm.run("squeue", "--noheader"))
    *well, third = rows()
    assert all("COMPLETED  found" in row for row in well)
    assert "FAILED" in third and "$(such)' is neither a release nor a revision" in third
    assert f"the output of the job is in {logs / '3.log'}" in exits(0, "batch", "b1", *kept)
    assert hunt.ask("select culprit from culprits", kept[1]) == [(hunt.culprit,)] * 2
    assert hunt.ask("select count(*) from attempts group by session_id", kept[1]) == [(2,), (1,)]
    assert {*before} < {*hunt.ask("select event_id from runs where session_id = 1", kept[1])}
    there = exits(0, "query", "select hunt_id, culprit from culprits", "--csv", "--from", team).splitlines()[1:]
    assert there == [f"here:1,{hunt.culprit}", f"here:2,{hunt.culprit}"]
    assert "1 hunt submitted; 2 not submitted again" in submitted('"--hold"')
    assert "2 of 3 have a verdict" in exits(0, "history", *kept)
    exits(0, "batch", "b1", "--cancel", *kept)


def test_arguments_reach_a_slurm_job_unchanged(slurm: Slurm, tmp_path: Path) -> None:
    """The job's log has the requested name. No argument of a hunt becomes an option of sbatch."""
    folder = tmp_path / "it's a\n$(folder)"
    with pytest.raises(EnvironmentFailure, match=r"sbatch of Slurm has failed: .*partition"):
        sbatch(["--partition"], SCRIPT, [])  # without its value
    assert job_states(["4000000"]) == {}
    hostile = ["a b", "'\"\n#SBATCH --hold\n", "$(touch x)`touch x`", "", "%j\\", ":", "--hold", ".", "é;|*"]
    folder.mkdir()
    log = folder / "logs" / "%j\\ $(touch x).log"
    job = SlurmJob(
        PlannedHunt((*hostile, "no\n#SBATCH --hold", "$(bad)"), str(folder), (("local",),)), ("--comment=a\n'b",), 0
    )
    arguments = job.script_arguments(log, "3:0", tmp_path / "h '.db")
    arguments[3] = str(executable(tmp_path / "python", '#!/bin/sh\nprintf "%s\\0" "$PWD" "$@"\n'))  # prints arguments
    number = sbatch(job.sbatch_options(), SCRIPT, arguments)
    until(lambda: not job_states([number])[number].is_open)
    assert str(job_states([number])[number]) == "COMPLETED"
    checked, ran = ([*part.split("\0")] for part in log.read_text().split(f"{folder}\0")[1:])
    assert checked == ["-P", "-c", "import perfbisect.cli.main", ""]
    history = str(tmp_path / "h '.db")
    begun = ["run", f"--in-batch=3:0:{number}", "--history", history, "--wait", "--plain", "--host=local"]
    assert ran[3:] == [*begun, *job.planned.arguments, ""]
    assert {each.name for each in folder.iterdir()} == {"logs"}


@pytest.mark.calibrate
def test_hunt_of_a_job_gets_sigterm_before_the_time_limit(slurm: Slurm, tmp_path: Path) -> None:
    """The script must `exec` the hunt, because a shell would delay the signal. Slurm checks its limits every 30 s."""
    job = SlurmJob(PlannedHunt(("a", "b"), str(tmp_path), (("local",),)), ("--time=1",), 0)
    arguments = job.script_arguments(tmp_path / "log", "3:0", tmp_path / "h.db")
    arguments[3] = str(
        executable(tmp_path / "python", "#!/bin/sh\ncase $3 in import*) exit ;; esac\nexec sleep 1000\n")
    )
    number = sbatch(job.sbatch_options(), SCRIPT, arguments)
    until(lambda: not job_states([number])[number].is_open)
    assert job_states([number])[number].status == 128 + signal.SIGTERM


LABGRID = ("labgrid-coordinator", "labgrid-exporter", "labgrid-client")


HOSTS = (Path(__file__).parent / "programs" / "labgrid.toml").read_text()


class Lab:
    """A labgrid coordinator with one place, named box, with the tags board=quiet and arch=any."""

    def __init__(self, folder: Path) -> None:
        with closing(socket.socket()) as one:
            one.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        (folder / "exporter.yaml").write_text("box:\n  NetworkService:\n    address: 127.0.0.1\n    username: root\n")
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.folder = folder
        try:
            self._daemon("labgrid-coordinator", "-l", self.address)
            until(lambda: self._client("places") is not None)
            self._daemon("labgrid-exporter", "-c", self.address, "-n", "here", "exporter.yaml")
            until(lambda: self._client("resources"))
            for words in (
                ["create"],
                ["add-match", "here/box/NetworkService"],
                ["set-tags", "board=quiet", "arch=any"],
            ):
                assert self._client("-p", "box", *words) is not None
        except BaseException:
            self.end()
            raise

    def _daemon(self, *command: str) -> None:
        out = subprocess.DEVNULL
        self.daemons.append(subprocess.Popen(command, cwd=self.folder, stdin=out, stdout=out, stderr=out))

    def _client(self, *words: str) -> str | None:
        done = subprocess.run(
            ["labgrid-client", "-x", self.address, *words], capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout if done.returncode == 0 else None

    def used(self) -> str:
        """The acquired places and the reservations."""
        return "\n".join((self._client("who") or "").splitlines()[1:]) + (self._client("reservations") or "")

    def end(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if lacking := [name for name in LABGRID if not shutil.which(name)]:
        pytest.skip(f"no {lacking[0]}: pip install labgrid")
    made = Lab(tmp_path_factory.mktemp("labgrid"))
    yield made
    made.end()


@pytest.fixture
def lab(running: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    monkeypatch.setenv("LG_COORDINATOR", running.address)
    (tmp_path / "hosts.toml").write_text(HOSTS.format(folder=tmp_path))
    assert running.used() == ""
    return running


def doctor(folder: Path) -> list[str]:
    return ["doctor", "labgrid:board=quiet,arch=any", "--hosts", str(folder / "hosts.toml"), "--json"]


@pytest.mark.slow
def test_labgrid_place_is_reserved_acquired_and_released(lab: Lab, tmp_path: Path) -> None:
    done = bisect(*doctor(tmp_path))
    assert json.loads(done.stdout)["host"]["settings"]["node"] == "127.0.0.1", done.stderr
    assert lab.used() == ""


@pytest.mark.slow
def test_sessions_wait_for_a_labgrid_place(lab: Lab, tmp_path: Path) -> None:
    """The next session releases the place, or the reservation, of a killed session."""
    acquire = {"LG_HOSTNAME": "them", "LG_USERNAME": "other"}
    other = ["labgrid-client", "-p", "box"]
    subprocess.run([*other, "acquire"], env=os.environ | acquire, check=True, capture_output=True)
    seen = []

    def kill(process: subprocess.Popen[str]) -> None:
        seen.append(lab.used())
        process.send_signal(signal.SIGKILL)

    assert bisect_until(doctor(tmp_path), "Waiting for labgrid:", kill).returncode == -signal.SIGKILL
    assert "state: waiting" in seen[0]

    def free(_: object) -> None:
        subprocess.run([*other, "release"], env=os.environ | acquire, check=True, capture_output=True)

    done = bisect_until(doctor(tmp_path), "Waiting for labgrid:", free)
    assert "is released now, because the session that leased it has ended" in done.stderr
    assert json.loads(done.stdout)["host"]["settings"]["node"] == "127.0.0.1"
    assert lab.used() == ""
