"""A session locks its hosts, and cleans them up at its end."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from perfbisect.errors import Interrupted, PerfBisectError
from perfbisect.host.lock import Lease, WaitCallback, hold, new_session
from perfbisect.host.protocol import Host
from perfbisect.lab.workload import dataset

if TYPE_CHECKING:
    from perfbisect.hunt.setup import HuntSetup


@contextmanager
def lock_hosts(setup: "HuntSetup", waiting: WaitCallback | None, purpose: str = "") -> Iterator[dict[str, Lease]]:
    """Hold the locks of all hosts, for a hunt or another ``purpose``; yields the lease of each host by name.

    They are taken in the order of the names, so that two hunts cannot deadlock. Before they are released, the last
    visit's copy of the data is removed; not after a failure, whose cause it may show. Raises UsageError where two names
    lead to one root folder.
    """
    hosts = {site.build_host.name: site.build_host for site in setup.hosts if site.build_host}
    hosts |= {site.host.name: site.host for site in setup.hosts}
    with ExitStack() as stack:
        purpose = purpose or setup.purpose
        session = new_session()
        held = {
            name: stack.enter_context(hold(host, purpose, waiting, session)) for name, host in sorted(hosts.items())
        }
        for site in setup.hosts:
            stack.push(partial(clear, site.host, held[site.host.name]))
        yield held


def clear(host: Host, held: Lease, failure: type[BaseException] | None, *_: object) -> None:
    """Remove what the last visit of a session has left, unless the session failed."""
    failed = failure is not None and issubclass(failure, Exception) and not issubclass(failure, Interrupted)
    if not held.lost and not failed:
        with suppress(PerfBisectError):  # out of reach: `bisect gc` removes it later
            held.confirm()  # after a long sleep the visit may belong to another session
            dataset.remove_visit(host)
