"""A session locks its hosts, and cleans them up at its end."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from perfbisect.errors import Interrupted, PerfBisectError
from perfbisect.host.lock import SESSION, HostLock, WaitCallback, hold, machine
from perfbisect.host.protocol import Host
from perfbisect.lab.building.pipeline import end_all
from perfbisect.lab.workload import dataset

if TYPE_CHECKING:
    from perfbisect.hunt.setup import HuntSetup


@contextmanager
def lock_hosts(setup: "HuntSetup", waiting: WaitCallback | None, purpose: str = "") -> Iterator[dict[str, HostLock]]:
    """Hold the locks of all hosts, for a hunt or another ``purpose``; yields the lock of each host by name.

    They are taken in the order of the machines, so that two hunts cannot deadlock. Before they are released, builds that an
    earlier session has left running on build hosts are ended, and the last visit's copy of the data is removed; not after
    a failure, whose cause it may show. Raises UsageError where two names lead to one root folder.
    """
    hosts = {each.host.name: each.host for site in setup.hosts for each in site.build_hosts}
    hosts |= {site.host.name: site.host for site in setup.hosts}
    with ExitStack() as stack:
        purpose = purpose or setup.purpose
        held = {
            host.name: stack.enter_context(hold(host, purpose, waiting, SESSION))
            for host in sorted(hosts.values(), key=lambda host: (machine(host), host.name))
        }
        for each in (each for site in setup.hosts for each in site.build_hosts):
            stack.callback(end_builds, each.host, held[each.host.name])
        for site in setup.hosts:
            stack.push(partial(clear, site.host, held[site.host.name]))
        yield held


def tell_number(held: Mapping[str, HostLock], name: str) -> None:
    """Let others see the number of a hunt, or the name of a trial, that holds the locks."""
    for lock in held.values():
        lock.number(name)


def end_builds(host: Host, held: HostLock) -> None:
    """End the builds on a host that no session wanted any more."""
    if not held.lost:
        with suppress(PerfBisectError):  # out of reach: the next session ends them
            held.confirm()
            end_all(host)


def clear(host: Host, held: HostLock, failure: type[BaseException] | None, *_: object) -> None:
    """Remove what the last visit of a session has left, unless the session failed."""
    failed = failure is not None and issubclass(failure, Exception) and not issubclass(failure, Interrupted)
    if not held.lost and not failed:
        with suppress(PerfBisectError):  # out of reach: `bisect gc` removes it later
            held.confirm()  # after a long sleep the visit may belong to another session
            dataset.remove_visit(host)
