"""Which hunts of a batch begin next."""

from collections.abc import Collection, Mapping, Sequence

from perfbisect.hunt import batch
from perfbisect.hunt.batch import Hosts, Task

A, B, C = ("a",), ("b",), ("c",)


def waiting(number: int, *choices: Hosts, span: str = "") -> Task:
    """A hunt; its range is its own unless named."""
    return Task(str(number), (), "", choices, span or str(number))


def next_ones(
    tasks: Sequence[Task], busy: Collection[str], homes: Mapping[str, Collection[Hosts]]
) -> list[tuple[int, Hosts]]:
    """Those that begin, by number, where a hunt locks the hosts that it measures on."""
    begun = batch.next_ones(tasks, busy, homes, lambda _, hosts: hosts)
    return [(int(task.title), hosts) for task, hosts in begun.items()]


def test_one_host_takes_hunts_in_their_order() -> None:
    both = [waiting(0, A), waiting(1, A)]
    assert next_ones(both, (), {}) == [(0, A)]
    assert next_ones(both, A, {}) == []
    assert next_ones(both[1:], (), {}) == [(1, A)]


def test_others_go_on_with_other_hosts() -> None:
    assert next_ones([waiting(0, A), waiting(1, A), waiting(2, B)], (), {}) == [(0, A), (2, B)]


def test_a_hunt_that_needs_two_hosts_is_not_overtaken_on_one_of_them() -> None:
    """It would never begin where hunts for one of the two always come."""
    assert next_ones([waiting(0, ("a", "b")), waiting(1, B), waiting(2, C)], A, {}) == [(2, C)]


def test_hunts_of_a_range_begin_where_its_builds_are() -> None:
    hunts = [waiting(0, A, B, span="x"), waiting(1, A, B, span="x"), waiting(2, A, B, span="y")]
    assert next_ones(hunts, (), {}) == [(0, A), (2, B)]
    assert next_ones([waiting(1, A, B, span="x")], (), {"x": {B}}) == [(1, B)]


def test_no_host_is_idle_while_a_hunt_could_use_it() -> None:
    """Also where that builds again what is built elsewhere."""
    assert next_ones([waiting(1, A, B, span="x")], B, {"x": {B}}) == [(1, A)]


def test_hosts_that_nobody_locks_take_all() -> None:
    """Those of a scheduler, which has a queue of its own."""
    assert next_ones([waiting(0, ()), waiting(1, ())], (), {}) == [(0, ()), (1, ())]
