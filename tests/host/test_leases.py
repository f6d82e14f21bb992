"""Leases of machines from a simulated scheduler: a folder, in which each file job-* is a job."""

import errno
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest

from fake_host import FakeHost
from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host import leases
from perfbisect.host.leases import LeasedHost, LeaseEnded, LeaseJobRecord, LeaseRequest
from perfbisect.host.registry import connect
from perfbisect.host.remote import Listener, Unsubscribe
from perfbisect.hunt.session_hosts import hold_leases
from perfbisect.process import machine_identity as this_boot
from perfbisect.recipes.inventory import LeaseEntry, load_host, load_lease
from waiting import until

pytestmark = pytest.mark.tools


Show, Say, Nodes = Callable[[str, str], object], Callable[[str], object], Any


def silent(*_: str) -> None:
    """Print nothing."""


def records() -> list[tuple[str, bool]]:
    return [(record.job, runs) for record, runs in leases.records_with_running()]


def leased(wanted: LeaseRequest, show: Show = silent, say: Say = silent) -> Any:
    return leases.lease_machines(wanted, show, say)


class Pool:
    """The scheduler. It lends machines while the file `open` exists, and takes machines back unless `shut` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.open = folder, folder / "open"
        folder.mkdir()
        self.open.touch()
        acquire = f"cd {folder}; touch job-{{job}}; echo {{features}} {{count}} {{node}} >>asked\n"
        acquire += "until [ -e open ]; do sleep 0.1; done; seq -f n%g {count} | sed s/$/-id/"
        renew = f"cd {folder} || exit 2; [ ! -e unknown ] || exit 3; [ -e job-{{job}} ]"
        release = f"cd {folder}; echo {{job}} >>released; [ ! -e shut ]; rm -f job-{{job}}"
        scripts = {"acquire": acquire, "renew": renew, "release": release}
        self.commands = {name: ["sh", "-ec", script] for name, script in scripts.items()}
        self.commands["status"] = ["echo", "first in the queue"]

    def state(self) -> tuple[list[tuple[str, bool]], list[str]]:
        """The recorded leases, each with whether its session runs, and the jobs of the scheduler."""
        return records(), [path.name.removeprefix("job-") for path in self.folder.glob("job-*")]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def lease(
        self, *names: str, show: Show = silent, say: Say = silent, nodes: Nodes = (), minutes: float = 0.0, **own: Any
    ) -> Any:
        """Lease machines; ``own`` are commands that replace the usual commands."""
        entry = LeaseEntry(name="pool", file="hosts.toml", **{"every": 1, **self.commands, **own})
        wanted = LeaseRequest(entry, "quiet", names or ("pool:quiet",), dict(nodes), minutes=minutes)
        return leased(wanted, show, say)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path / "pool")


PAIR = ("pool:quiet/1", "pool:quiet/2")


def test_lease_is_recorded_from_its_request_to_its_release(pool: Pool) -> None:
    noted = []
    pool.open.unlink()

    def show(what: str, state: str) -> None:
        noted.append((what, state, *pool.state()))
        pool.open.touch()

    with pool.lease(*PAIR, show=show, nodes=zip(PAIR, ("n1", "n2"), strict=True)) as job:
        made = [(each.name, each.address, each.lease) for each in job.machines]
        assert made == [(PAIR[0], "n1-id", "n1-id"), (PAIR[1], "n2-id", "n2-id")]
        assert leases.leased_machine(PAIR[1]) is job.machines[1]
    [name] = set(pool.lines("released"))
    assert noted[0] == ("pool:quiet*2", "first in the queue", [(name, True)], [name])
    assert noted[-1][1] == ""
    assert pool.lines("asked") == ["quiet 2 n1,n2"]
    assert pool.state() == ([], [])
    with pytest.raises(EnvironmentFailure, match="not leased"):
        leases.leased_machine(PAIR[1])


def test_machine_has_the_same_name_as_in_an_earlier_session(pool: Pool) -> None:
    nodes = {"pool:": "n3-id", "pool:/1": "n9-id", "pool:/3": "n1-id"}
    with pool.lease("pool:", "pool:/1", "pool:/2", "pool:/3", nodes=nodes) as job:
        assert [each.address for each in job.machines] == ["n3-id", "n2-id", "n4-id", "n1-id"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EnvironmentFailure("full disk"), SystemExit()])
@pytest.mark.parametrize("queued", [True, False])
def test_lease_is_released_however_the_session_ends(pool: Pool, error: BaseException, queued: bool) -> None:
    """If the request is in the queue, the command `acquire` is ended first."""

    def end(*_: str) -> None:
        raise error

    if queued:
        pool.open.unlink()
    with pytest.raises(type(error)), pool.lease(show=end if queued else silent):
        end()
    assert pool.state() == ([], [])


@pytest.mark.parametrize(
    ("acquire", "sentence", "released"),
    [
        (["sh", "-c", "echo no such partition >&2; exit 1"], "pool:quiet cannot be leased: no such partition", 0),
        (["sh", "-c", "kill -9 $$"], "sh ended with status -9", 1),
        (["true"], "printed 0 lines", 1),
        (["echo", "a b c"], "printed 1 line,", 1),
        (["printf", "a\nb\n"], "printed 2 lines", 1),
        (["sh", "-c", "sleep 1.5; seq 3"], "printed 3 lines, but must print the address", 1),  # is awaited
        (["no-such-command"], "no-such-command does not start on this machine", 0),
    ],
)
def test_failed_lease_is_reported_not_recorded(pool: Pool, acquire: list[str], sentence: str, released: int) -> None:
    """`release` is not run for a machine that was not leased, because `release` may not know who holds the machine."""
    shown: list[str] = []
    lending = pool.lease(acquire=acquire, status=[], renew=[], show=lambda _, state: shown.append(state))
    with pytest.raises(EnvironmentFailure, match=sentence), lending:
        pass
    assert (records(), "" in shown) == ([], False)
    assert len(pool.lines("released")) == released


def test_machine_of_another_session_is_not_released(pool: Pool) -> None:
    """The commands know one machine and no jobs, so `release` would release the machine for any session."""
    held = pool.folder / "held"
    commands = {"acquire": ["sh", "-c", f"mkdir {held} && echo n1"], "release": ["rmdir", str(held)], "renew": []}
    with pool.lease(**commands):
        with pytest.raises(EnvironmentFailure, match="File exists"), pool.lease(**commands):
            pass
        assert held.exists()
    assert (records(), held.exists()) == ([], False)


def test_lease_of_the_documentation_works(tmp_path: Path) -> None:
    """Two sessions that request the same machine lease it one after the other."""
    page = (Path(__file__).parents[2] / "docs" / "leases.md").read_text()
    [text] = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[leases.shelf]" in block]
    hosts, shelf = tmp_path / "hosts.toml", tmp_path / "shelf"
    hosts.write_text(text.replace("/srv/shelf", str(shelf)))
    (shelf / "taken").mkdir(parents=True)
    (shelf / "free").mkdir()
    for name in ("quiet1", "loud.1"):
        (shelf / "free" / name).touch()
    lease = msgspec.structs.replace(load_lease("shelf", hosts), every=1)
    order: list[str] = []

    def second() -> None:
        with leased(LeaseRequest(lease, "quiet", ("second",))) as job:
            order.append(job.machines[0].address)

    with (
        leased(LeaseRequest(lease, "quiet", ("first",))) as first,
        leased(LeaseRequest(lease, "loud", ("third",))) as third,
    ):
        assert (first.machines[0].address, third.machines[0].address) == ("quiet1", "loud.1")
        waiting = threading.Thread(target=second)
        waiting.start()
        first.machines[0].renew_now()
        order.append("first ends")
    waiting.join()
    assert order == ["first ends", "quiet1"]
    assert sorted(path.name for path in (shelf / "free").iterdir()) == ["loud.1", "quiet1"]
    assert not list((shelf / "taken").iterdir())


def test_commands_get_the_minutes_and_the_renewal_period(pool: Pool) -> None:
    for minutes, printed in ((0.0, ":1"), (89.5, "150:1")):
        with pool.lease(acquire=["sh", "-c", "echo n1 {minutes}:{every}"], minutes=minutes) as job:
            assert job.machines[0].lease == printed


def test_one_machine_of_a_job_is_lost_and_the_other_stays_leased(pool: Pool) -> None:
    gone = f"[ {{address}} != n1-id ] || [ ! -e {pool.folder}/n1-is-down ]"
    with pool.lease(*PAIR, renew=["sh", "-c", gone]) as job:
        hosts = [LeasedHost(Breaking(), machine) for machine in job.machines]
        (pool.folder / "n1-is-down").touch()
        until(lambda: job.machines[0].ended)
        with pytest.raises(LeaseEnded):
            hosts[0].run(["true"])
        job.machines[1].renew_now()
        assert hosts[1].run(["true"]).ok
    assert len(pool.lines("released")) == 1


def test_next_session_retries_a_failed_release(pool: Pool) -> None:
    said: list[str] = []
    (pool.folder / "shut").touch()
    with pool.lease(say=said.append) as job:
        name = job.values["job"]
    assert records() == [(name, False)]
    leases.release_jobs_of_killed_sessions(said.append)
    assert records() == [(name, False)]
    (pool.folder / "shut").unlink()
    leases.release_jobs_of_killed_sessions(said.append)
    assert pool.state() == ([], [])
    assert [f"job {name}," in each for each in said] == [True] * 3
    assert "could not be released" in said[0]
    assert said[2].endswith("is released now, because the session that leased it has ended.")


def note(*release: str, process: str = f"{this_boot()} 1 0", since: str = "now", machine: str = "here") -> None:
    """Record a lease. Its session has ended, unless ``process`` runs."""
    leases.store_record(LeaseJobRecord("j1", "pool:quiet", 1, since, process, machine, [*release]))


def test_lease_is_released_only_after_its_session_ends(tmp_path: Path) -> None:
    """The session is killed, so it cannot release the lease itself."""
    mark, say = (
        tmp_path / "released",
        "from perfbisect.process import this_process_identity as at; print(at(), flush=True); input()",
    )
    with subprocess.Popen([sys.executable, "-c", say], stdin=-1, stdout=-1, text=True) as session:
        assert session.stdout
        note("touch", str(mark), process=session.stdout.readline().strip())
        leases.release_jobs_of_killed_sessions(silent)
        assert (records(), mark.exists()) == ([("j1", True)], False)
        session.kill()
    leases.release_jobs_of_killed_sessions(silent)
    assert (records(), mark.exists()) == ([], True)


def test_two_sessions_release_a_lease_once(pool: Pool) -> None:
    """The second session looks for leases while the first session releases the lease."""
    begun, go = pool.folder / "begun", pool.folder / "go"
    note("sh", "-c", f"touch {begun}; until [ -e {go} ]; do sleep 0.05; done; echo once >>{pool.folder}/released")
    first = threading.Thread(target=leases.release_jobs_of_killed_sessions, args=(silent,))
    first.start()
    until(begun.exists)
    leases.release_jobs_of_killed_sessions(silent)
    go.touch()
    first.join()
    assert (pool.lines("released"), records()) == (["once"], [])


@pytest.mark.parametrize(("since", "runs"), [("2020-01-01T00:00:00Z", False), ("2999-01-01T00:00:00Z", True)])
def test_lease_of_another_machine_is_kept_until_it_is_old(since: str, runs: bool) -> None:
    note("true", since=since, process="another pid:[1] 12 34", machine="another")
    assert records() == [("j1", runs)]


def test_leases_work_on_a_file_system_without_locks(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pool.lease() as job:
        leases.release_jobs_of_killed_sessions(silent)
        assert records() == [(job.values["job"], True)]
    note("true")
    assert records() == [("j1", False)]
    leases.release_jobs_of_killed_sessions(silent)
    assert records() == []


class Breaking(FakeHost):
    """A host whose command `lost` loses the connection. ``retry`` asks the listener whether a retry is allowed."""

    def __init__(self) -> None:
        super().__init__("pool:quiet", {"true": "", "lost": ConnectionLost("gone")})

    def subscribe(self, listener: Listener) -> Unsubscribe:
        """Report to the listener."""
        self.retry = partial(listener, "the connection is lost; perfbisect tries to reconnect")
        return lambda: None


def test_no_command_runs_on_a_machine_after_its_lease_ended(pool: Pool) -> None:
    inner = Breaking()
    with pool.lease() as job:
        host = LeasedHost(inner, job.machines[0])
        assert (host.run(["true"]).status, host.node, host.root) == (0, "n1-id", PurePosixPath("/pool:quiet"))
        with pytest.raises(ConnectionLost):
            host.run(["lost"])
        inner.retry()  # the lease is valid, so the retry is allowed
        (pool.folder / "unknown").touch()
        (pool.folder / f"job-{job.values['job']}").unlink()
        inner.retry()  # the scheduler does not answer: the lease counts as valid
        (pool.folder / "unknown").unlink()
        for use in (inner.retry, lambda: host.run(["true"])):
            with pytest.raises(LeaseEnded, match=r"the lease of host pool:quiet \(n1-id\) has ended"):
                use()


def test_ended_lease_stays_ended(pool: Pool) -> None:
    """A thread asks for the renewal before the end of the lease, and gets the answer after the end."""
    asked, answer = pool.folder / "asked-to-renew", pool.folder / "answer"
    slow = f"mkdir {asked} || exit 1; until [ -e {answer} ]; do sleep 0.1; done"
    with pool.lease(renew=["sh", "-c", slow], every=1000) as job:
        first = threading.Thread(target=job.renew, args=(job.machines[0],))
        first.start()
        until(asked.exists)
        job.renew(job.machines[0])
        assert job.machines[0].ended
        answer.touch()
        first.join()
        assert job.machines[0].ended


FOLDER = """
[leases.{name}]
acquire = ["sh", "-ec", "cd {folder}; echo {name}:{{features}} {{count}} >>asked; seq -f n%g {{count}}"]
release = ["true"]
[leases.{name}.host]
through = ["env", "NODE={{address}}"]
root = "{folder}/{{address}}"
"""


def test_hosts_and_build_hosts_are_leased_in_a_fixed_order(tmp_path: Path) -> None:
    """Machines with more requested features are leased first."""
    hosts, asked = tmp_path / "hosts.toml", tmp_path / "asked"
    own = '[hosts.b]\nbuild_hosts = ["pool:build*2", "b"]\n'
    hosts.write_text(own + "".join(FOLDER.format(name=name, folder=tmp_path) for name in ("pool", "a")))
    with hold_leases(["pool:quiet", "a:x/2", "a:x/1", "b"], hosts, silent, silent):
        assert asked.read_text().splitlines() == ["a:x 2", "pool:build 2", "pool:quiet 1"]
        shared, build = hold_leases(["pool:quiet"], hosts, silent, silent), load_host("pool:build/2", hosts)
        with shared, connect(build) as there:  # a lease of this process is shared
            assert there.run(["sh", "-c", "echo $NODE"]).stdout == "n2\n"
            assert (there.node, there.is_local) == ("n2", False)
    assert (len(asked.read_text().splitlines()), records()) == (3, [])
    asked.unlink()
    with hold_leases(["pool:", "pool:a", "pool:nvme&quiet"], hosts, silent, silent):
        assert asked.read_text().splitlines() == ["pool:nvme&quiet 1", "pool:a 1", "pool: 1"]
