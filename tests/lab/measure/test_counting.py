"""Exact counts of instructions, by real perf and real valgrind."""

import os
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import run as counted_run
from labs import FAST, SLOW, Open, finished, lab_of, measure, skipped, workload
from perfbisect.core.domain.events import ExecutionStarted
from perfbisect.core.domain.metrics import METRICS, exact, shown, unit, value
from perfbisect.core.domain.orders import Share
from perfbisect.core.domain.settings import Quick
from perfbisect.core.explain.counts import counts_of
from perfbisect.errors import UsageError
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.lab.measure import counting
from perfbisect.lab.measure.counting import ENOUGH, LONGEST, PERF, Counter
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.requested import quick_builder, quick_workload
from perfbisect.recipes.workload import Workload
from program import executable
from repos import Repo

FOLDER = PurePosixPath("/visit")
COMMAND = Workload(name="c", suite="s", driver="d", summary="", group="g", command=["bench", "--n={events}", "{time}"])


@pytest.fixture(params=["perf", pytest.param("valgrind", marks=pytest.mark.slow)])
def by(request: pytest.FixtureRequest, host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The method with perf, and that without it; the test is skipped where the machine has none of that sort."""
    if request.param == "valgrind":
        perf = executable(
            tmp_path / "programs" / "perf", "#!/bin/sh\necho '<not supported>,,instructions:u,0,100.00,,' >&2\n"
        )
        monkeypatch.setenv("PATH", f"{perf.parent}:{os.environ['PATH']}")
    found = counting.method(host)
    if not found.startswith(request.param):
        pytest.skip(f"this machine does not count by {request.param}")
    return found


@pytest.mark.tools
def test_counts_of_one_build_repeat_and_are_those_of_the_code(open_lab: Open, by: str) -> None:
    lab = open_lab(
        {"rest": 0}, earlier=Earlier(events=0 if by == PERF else 200)
    )  # valgrind is slow: perf looks for a length
    lab.counted = by
    events = measure(lab, Share(FAST, 2), Share(SLOW, 1))
    runs = finished(events)
    (first, again), (slow,) = ([run for candidate, run in runs if candidate == one] for one in (FAST, SLOW))
    counts = [value(run, "instructions/o") for run in (first, again, slow)]
    assert all(counts)
    one, other, twice = (count or 0.0 for count in counts)
    assert abs(one / other - 1) < 1e-4
    assert twice / one == pytest.approx(2, rel=0.05), "the driver's share is small"
    assert first.counted == by
    lengths = [event.operations for event in events if isinstance(event, ExecutionStarted)]
    assert lengths[-4:] == [first.events, 2 * first.events] * 2, "one length for all"
    assert by == PERF or lengths == [200, 400] * 3, "that is known and kept"
    assert first.events == first.operations == slow.operations
    assert exact(first, "instructions/o")
    assert not exact(first, "cpu/o")
    for name in METRICS.keys() - {"instructions/o"}:
        assert value(first, name) is None, f"{name} of a counted run"
    assert shown(first, "instructions/o") == one
    assert unit("instructions/o") == "instructions/o"


LOOP = "i=0; while [ $i -lt {events} ]; do i=$((i + 1)); done"


@pytest.mark.slow
@pytest.mark.tools
def test_a_command_is_counted_without_its_start_up(host: LocalHost, git: Repo, tmp_path: Path, by: str) -> None:
    lab = command_lab(host, git, tmp_path, "seq 20000 >/dev/null; " + LOOP)
    lab.counted, lab.earlier = by, Earlier(events=500)
    (_, first), (_, again) = finished(measure(lab, Share(0, 2)))
    one, other = value(first, "instructions/o"), value(again, "instructions/o")
    assert one and other
    assert one == pytest.approx(other, rel=0.01), "a loop of the shell"
    assert one < 20_000, "what seq does once is not in it"
    assert first.operations == 500
    assert value(first, "latency") is None


@pytest.mark.tools
def test_a_length_that_is_no_use(host: LocalHost, git: Repo, tmp_path: Path) -> None:
    """A command that knows none is counted as a whole, and a later commit that ignores it is skipped."""
    lab = command_lab(host, git, tmp_path, LOOP.replace("{events}", "5000"))
    lab.counted = counting.method(host) or pytest.skip("this machine counts no instructions")
    ((_, run),) = finished(measure(lab, Share(0, 1)))
    assert (run.operations, run.events, run.counted) == (1, 0, lab.counted)
    assert (value(run, "instructions/o") or 0) > 5000
    later = command_lab(host, git, tmp_path, "echo did 5; : {events}", operations=r"did (\d+)")
    later.counted, later.earlier = lab.counted, Earlier(events=500)  # of some use to an earlier build
    assert "cannot be counted exactly" in skipped(measure(later, Share(0, 1))).reason


def command_lab(host: LocalHost, git: Repo, folder: Path, script: str, operations: str = "") -> HostLab:
    repository, sha = git.path, git.commit()
    builder = quick_builder(("true",), str(repository))
    slow = r"took (\d+) ms"  # that is not printed, as by a program that is much slower while it is counted
    chosen = quick_workload(Quick(run=f"sh -c '{script}'", operations=operations, cost=slow), builder)
    return lab_of(host, builder, chosen, repository, (sha,), is_range=False)


def test_only_the_number_of_operations_decides_how_long_a_counted_run_is() -> None:
    sysbench = counting.of_length(workload({"rand-seed": 0, "rows": 1}), 80)
    assert sysbench.warmup == 0
    assert sysbench.args == {
        "rand-seed": 1, "rows": 1, "events": 80, "time": 0, "report-interval": 0, "percentile": 0, "histogram": False,
    }  # fmt: skip
    assert counting.of_length(COMMAND, 80).args == {"events": 80, "time": 0}
    assert counting.has_length(COMMAND)
    assert counting.has_length(workload())
    assert not counting.has_length(msgspec.structs.replace(COMMAND, command=["bench", "{{events}}"]))


@given(start=st.floats(0, 1e10), each=st.floats(1, 1e12))
def test_the_length_is_about_as_many_instructions_as_are_enough(start: float, each: float) -> None:
    lengths: dict[int, float] = {}
    while events := counting.next_length(lengths):
        lengths[events] = start + events * each
    chosen = counting.chosen_length(lengths)
    assert chosen == 1 or chosen * each == pytest.approx(ENOUGH, rel=0.6)
    assert max(lengths) * each < 20 * ENOUGH or max(lengths) == counting.STEP


def test_a_command_that_does_not_use_its_length_is_reported() -> None:
    lengths: dict[int, float] = {}
    with pytest.raises(UsageError, match=r"as many instructions when \{events\} is 268,435,456 as when it is 1"):
        while events := counting.next_length(lengths):
            lengths[events] = 5e6
    assert max(lengths) == LONGEST


def test_servers_and_threads_are_not_counted_exactly() -> None:
    embedded = Builder(name="demo", summary="", driver="demo")
    assert counting.obstacle(embedded, workload()) == ""
    threads = msgspec.structs.replace(workload(), threads=4)
    assert "4 threads" in counting.obstacle(embedded, threads)
    server = msgspec.structs.replace(embedded, server=Server(initialise=["a"], start=["b"], ready=["c"], stop=["d"]))
    assert "is a server" in counting.obstacle(server, workload())


def test_what_is_counted_is_read() -> None:
    """By valgrind in all processes, by perf in user space."""
    counter = Counter("valgrind-3.19.0", ("setarch", "-R"))
    assert counter.read("summary: 1200\nsummary: 34\n") == {"instructions": 1234}
    assert counter.read("") == counter.read("summary: many\n") == {"instructions": None}
    argv = counter.under(FOLDER)
    assert argv[:2] == ["setarch", "-R"]
    assert "--cachegrind-out-file=/visit/counters.%p" in argv
    functions = Counter("valgrind-3.19.0", by_function=True)
    assert {"--tool=callgrind", "--callgrind-out-file=/visit/counters.%p"} <= {*functions.under(FOLDER)}
    assert functions.read("summary: 12\n") == {"instructions": 12}
    counter = Counter(PERF)
    words = "perf stat -x , -o /visit/counters -e instructions:u --"
    assert counter.under(FOLDER) == words.split()
    assert counter.read("812345,,instructions:u,1234,100.00,,\n") == {"instructions": 812345}
    assert counter.read("<not supported>,,instructions:u,0,100.00,,\n") == {"instructions": None}


CALLGRIND = r"""version: 1
creator: callgrind-3.19.0
cmd: /usr/bin/bench {binary} 7
positions: instr
events: Ir
summary: 1234

ob={binary}
fl=/src/b.c
fn=walk(tree<int>*)
0x10 5
fi=/src/tree.h
0x14 50
cfn=walk(tree<int>*)'2
calls=3 0x10
0x14 9999
cob=/lib/libc.so.6
cfi=??
cfn=0x00000000000012f0
calls=2 0x12f0
0x14 77
fe=/src/b.c

fn=walk(tree<int>*)'2
0x10 20
fn=main
0x99 1
cfn=walk(tree<int>*)
calls=1 0x10
0x99 10222

ob=/lib/libc.so.6
fn=0x00000000000012f0
0x12f0 77
ob=???
fn=???
0x1 4
fn=
calls=
0x
calls=x y
nothing\t of this sort (/x)
totals: 1234
"""


@pytest.mark.tools
def test_what_callgrind_writes_is_added_up(host: LocalHost, tmp_path: Path) -> None:
    """Depths of a recursion are one function, inclusive costs of calls are none, and what is no line of its own is left out."""
    folder = tmp_path / "visit"
    folder.mkdir()
    binary = folder / "bench"
    binary.write_text("no binary")
    (folder / "counters.1").write_text(CALLGRIND.replace("{binary}", str(binary)))
    (folder / "counters.2").write_text("")
    stacks, calls = counts_of([], counting.functions_on(host, PurePosixPath(folder)).splitlines())
    assert stacks == {
        "bench;walk(tree<int>*) (bench)": 75, "bench;main (bench)": 1, "bench;[libc.so.6]": 77, "bench;[unknown]": 4,
    }  # fmt: skip
    walk = "walk(tree<int>*) (bench)"
    assert {pair: number for pair, number in calls.items() if number} == {
        f"{walk};{walk}": 3, f"{walk};[libc.so.6]": 2, f"main (bench);{walk}": 1,
    }  # fmt: skip


def test_start_up_is_in_neither_count() -> None:
    short, long = (
        counted_run(operations=length, counters={"instructions": 1000.0 + 3 * length}) for length in (500, 1000)
    )
    both = counting.difference(short, long)
    assert value(both, "instructions/o") == 3
    assert both.seconds == short.seconds + long.seconds
    with pytest.raises(UsageError, match="cannot be counted exactly"):
        counting.difference(short, short)
