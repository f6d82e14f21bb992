"""Work that was lost with its session or its host."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab_events import finished
from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    LabEvent,
    RunStarted,
    Warned,
)
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from small import BUILDER, FAST, Open
from waiting import until

pytestmark = pytest.mark.tools


def test_a_build_of_a_killed_session_is_followed_to_its_end(
    open_lab: Open, host: LocalHost, commits: tuple[str, ...], tmp_path: Path
) -> None:
    """The build waits for a word, so that it cannot be over before the next session looks. It needs what its compiler
    has put aside.
    """
    go, begun = tmp_path / "go", tmp_path / "begun"
    wait = f"touch $TMPDIR/x.s && echo >>{begun}; until [ -e {go} ]; do sleep 0.05; done; rm $TMPDIR/x.s && "
    patient = replace(BUILDER.build, compile=[["sh", "-c", wait + BUILDER.build.compile[0][2]]])

    def session() -> Iterator[LabEvent]:
        lab = open_lab(builder=replace(BUILDER, build=patient))
        return lab.measure(Measure((Share(FAST, 1),), Purpose.SEARCH))

    killed = os.fork()
    if not killed:
        list(session())
        os._exit(0)
    until(begun.exists)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    [left] = jobs.running(host)
    events = []
    for event in session():
        events.append(event)
        go.touch()
        if isinstance(event, BuildFinished):
            break
    assert begun.read_text() == "\n"
    assert jobs.running(host) == ()
    assert not Path(left.folder).exists()


def when_a_run_goes_on(host: LocalHost, act: Callable[[], None]) -> None:
    """Do something once the job of a run has begun."""

    def wait() -> None:
        until(lambda: any(job.name == "run" for job in jobs.running(host)))
        act()

    threading.Thread(target=wait).start()


def lose_jobs(host: LocalHost) -> None:
    for job in jobs.running(host):
        os.killpg(job.pid, signal.SIGKILL)


def test_work_that_was_lost_with_its_host_is_done_again(open_lab: Open, host: LocalHost) -> None:
    """Leaders that are killed leave no status, as after a restart of the host."""
    events = []
    for event in open_lab().measure(Measure((Share(FAST, 2),), Purpose.SEARCH)):
        events.append(event)
        if isinstance(event, RunStarted) and event.number == 2 and not any(isinstance(e, Warned) for e in events):
            when_a_run_goes_on(host, lambda: lose_jobs(host))
    warned = [event for event in events if isinstance(event, Warned)]
    assert len(warned) == 1
    assert "repeated" in warned[0].text
    assert len(finished(events)) == 2
    assert not any(isinstance(event, CandidateSkipped) for event in events)


def shut_down(host: LocalHost, name: str) -> None:
    """TERM for every process of the jobs of that name, the leaders last."""
    for job in jobs.running(host):
        if job.name.startswith(name):
            table = subprocess.run(["ps", "-o", "pid=", "-s", str(job.pid)], capture_output=True, text=True, check=True)
            for pid in sorted(map(int, table.stdout.split()), reverse=True):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def test_an_orderly_shutdown_is_held_against_no_commit(open_lab: Open, host: LocalHost, tmp_path: Path) -> None:
    """In a build, and in a run."""
    begun = tmp_path / "begun"
    pause = ["sh", "-c", f"if [ ! -e {begun} ]; then touch {begun}; sleep 60; fi"]
    lab = open_lab(builder=replace(BUILDER, build=replace(BUILDER.build, compile=[pause, *BUILDER.build.compile])))

    def strike() -> None:
        until(begun.exists)
        shut_down(host, "build-")

    threading.Thread(target=strike, daemon=True).start()
    events = []
    for event in lab.measure(Measure((Share(FAST, 1),), Purpose.SEARCH)):
        events.append(event)
        if isinstance(event, RunStarted) and sum(isinstance(e, RunStarted) for e in events) == 1:
            when_a_run_goes_on(host, lambda: shut_down(host, "run"))
    assert [type(event) for event in events if isinstance(event, Warned | CandidateSkipped)] == [Warned, Warned]
    assert len(finished(events)) == 1
