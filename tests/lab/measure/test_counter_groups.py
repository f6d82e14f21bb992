"""Which groups of counters a host has, from what trials of perf print."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.core.explain.top_down import AMD, ARM, BACK, FAMILIES, FRONT, INTEL, RETIRING, WRONG, slots
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.counter_groups import PLAIN, SLOTS, SOFTWARE, STALLS, available, chosen, shortened
from perfbisect.lab.measure.visit import RunContext
from perfbisect.lab.workload import sysbench
from perfbisect.recipes.find import load_workload
from perfbisect.recipes.inventory import HostEntry

OUTPUTS = Path(__file__).parents[2] / "outputs"


def test_no_group_needs_more_counters_than_processors_have() -> None:
    assert all(len(group.events) <= 4 for group in (*PLAIN, STALLS))
    assert all(len(set(group.events)) == len(group.events) for group in (*PLAIN, *SLOTS, STALLS))


def test_software_events_alone_where_nothing_is_counted() -> None:
    assert chosen({group: {} for group in (*PLAIN, *SLOTS, STALLS)}) == (SOFTWARE,)
    refused = dict.fromkeys(("cycles", "instructions", "branches", "branch-misses"))
    assert chosen({PLAIN[0]: refused}) == (SOFTWARE,)


def test_a_group_is_left_out_that_would_repeat_cycles_and_instructions_only() -> None:
    counted = {"cycles": 1.0, "instructions": 1.0}
    trials = {group: counted | dict.fromkeys(group.events[2:]) for group in PLAIN}
    assert chosen(trials) == (SOFTWARE,)
    assert chosen(trials | {PLAIN[0]: dict.fromkeys(PLAIN[0].events, 1.0)}) == (PLAIN[0],)


def test_slots_are_counted_where_they_all_are_and_stalls_elsewhere() -> None:
    plain = {PLAIN[0]: dict.fromkeys(PLAIN[0].events, 1.0)}
    stalls = {
        STALLS: {"cycles": 1.0, "instructions": 1.0, "stalled-cycles-frontend": 1.0, "stalled-cycles-backend": None}
    }
    every = dict.fromkeys(INTEL.events, 1.0)
    assert chosen(plain | stalls)[-1] is STALLS
    assert chosen(plain | stalls | {SLOTS[1]: every})[-1] is SLOTS[1]
    assert chosen(plain | stalls | {SLOTS[1]: every | {"slots": None}})[-1] is STALLS


def test_the_argument_is_as_perf_reads_it() -> None:
    assert PLAIN[0].argument == "cycles,instructions,branches,branch-misses"
    assert SLOTS[0].argument == "{slots,topdown-retiring,topdown-bad-spec,topdown-fe-bound,topdown-be-bound}"
    assert SLOTS[1].argument.startswith("{cpu_core/slots/,cpu_core/topdown-retiring/,")


def test_slots_of_an_intel_processor_are_those_of_its_metrics() -> None:
    lines = (OUTPUTS / "perf-intel-top-down.csv").read_text().splitlines()
    counters = perf.parse("\n".join(line.partition(",")[2] for line in lines if line[0] != "#"))
    of = {category: slots(counters, category) or 0.0 for category in (RETIRING, WRONG, FRONT, BACK)}
    shown = {RETIRING: 0.102, WRONG: 0.076, FRONT: 0.510, BACK: 0.311}  # as perf printed them
    total = counters["TOPDOWN.SLOTS"]
    assert total
    assert {category: count / total for category, count in of.items()} == pytest.approx(shown, abs=0.006)


def test_what_is_thrown_away_is_a_difference_and_never_negative() -> None:
    assert slots({"op_spec": 12.0, "op_retired": 10.0}, WRONG) == 2
    assert slots({"op_spec": 9.0, "op_retired": 10.0}, WRONG) is None
    assert slots({"de_src_op_disp.all": 12.0, "ex_ret_ops": 10.0}, WRONG) == 2
    assert slots({}, WRONG) is None
    assert {event for family in (AMD, ARM) for each in family.slots.values() for event, _ in each} == {
        *AMD.events, *ARM.events,
    }  # fmt: skip
    assert all(set(family.slots) == {RETIRING, WRONG, FRONT, BACK} for family in FAMILIES)


@pytest.mark.tools
def test_this_machine_counts_each_group_all_the_time(tmp_path: Path) -> None:
    host = LocalHost("here", PurePosixPath(tmp_path))
    groups = available(host)
    assert groups
    for group in groups:
        argument = ",".join((*filter(None, [group.argument]), *perf.SOFTWARE))
        done = host.run(["perf", "stat", "-x", ",", "-e", argument, "--", "ls", "/"], check=False)
        assert perf.parse(done.stderr)["task-clock"] is not None
        assert perf.shares(done.stderr) == {}, done.stderr


@pytest.mark.parametrize(("seconds", "time", "warmup"), [(0.2, 1, 1.0), (3.4, 3, 2.0), (99.0, 10, 2.0), (7.0, 7, 2.0)])
def test_runs_are_as_short_as_is_asked_and_of_whole_seconds(seconds: float, time: int, warmup: float) -> None:
    workload = replace(load_workload("update-index", "demo"), time=20.0, warmup=2.0)
    host = LocalHost("here", PurePosixPath("/nowhere"))
    context = RunContext(host, HostEntry(name="here"), workload, host.root, perf=True, vmstat=False, iostat=False)
    short = shortened(context, seconds).workload
    assert (short.time, short.warmup) == (time, warmup)
    assert f"--time={time}" in sysbench.command(short, PurePosixPath("x.lua"))
