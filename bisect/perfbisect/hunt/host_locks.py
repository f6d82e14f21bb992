"""The hosts of a session are its own from its beginning to its end, and are left as they were found."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from perfbisect.errors import Interrupted, PerfBisectError
from perfbisect.host.lock import Lease, WaitCallback, hold
from perfbisect.host.protocol import Host
from perfbisect.lab.workload import dataset

if TYPE_CHECKING:
    from perfbisect.hunt.setup import HuntSetup


@contextmanager
def hold_all(setup: "HuntSetup", waiting: WaitCallback | None, purpose: str = "") -> Iterator[dict[str, Lease]]:
    """Hold the locks of all hosts, for a hunt or another ``purpose``.

    They are taken in the order of their names, so that no two hunts wait for each other. The last visit's copy of the
    data goes before they are given back; but not after a failure, whose cause it may show.
    """
    hosts = {site.build_host.name: site.build_host for site in setup.sites if site.build_host}
    hosts |= {site.host.name: site.host for site in setup.sites}
    with ExitStack() as stack:
        purpose = purpose or setup.purpose
        held = {name: stack.enter_context(hold(host, purpose, waiting)) for name, host in sorted(hosts.items())}
        for site in setup.sites:
            stack.push(partial(clear, site.host, held[site.host.name]))
        yield held


def clear(host: Host, held: Lease, failure: type[BaseException] | None, *_: object) -> None:
    """Remove what the last visit of a session has left, unless the session has failed."""
    failed = failure is not None and issubclass(failure, Exception) and not issubclass(failure, Interrupted)
    if not held.lost and not failed:
        with suppress(PerfBisectError):  # out of reach: `bisect gc` will find it
            held.confirm()  # after a long sleep the visit may be another's
            dataset.remove_visit(host)
