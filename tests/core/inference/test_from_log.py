"""What the search sees of a log with build hosts."""

import pytest

from perfbisect.core.domain.events import BuildFinished
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.inference.observations import Built, observations


def built(commit: str, binary: str, host: str) -> tuple[float, BuildFinished]:
    return 100.0, BuildFinished(0, facts(commit, binary), None, host)


def facts(commit: str, binary: str) -> BuildFacts:
    return BuildFacts(commit, "key", binary, 5.0, 0, 0, False, "")


NODE = {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("hosts", [(), ("m", "n")])
def test_a_build_of_a_build_host_is_there_for_every_host(hosts: tuple[str, ...]) -> None:
    log = [built("a", "1", "b1"), built("b", "1", "b2"), built("c", "1", "n")]
    first, second, third = observations(log, NODE, "qps", 0.0, hosts, ("b1", "b2"))
    assert (first, second) == (Built(0, 5.0, build_host=0), Built(1, 5.0, 0, build_host=1))
    assert third == (Built(2, 5.0, None, 1) if hosts else Built(2, 5.0, 0)), "a host's own build is there on that host"
