"""Does the compiler cache of a host reach the store that it shares with others?"""

from collections.abc import Iterator

from perfbisect.host.programs import missing
from perfbisect.lab.build import ccache
from perfbisect.lab.checks.finding import Finding, Inspection, Level
from perfbisect.masking import masked


def compiler_cache(inspection: Inspection) -> Iterator[Finding]:
    """A compilation through the store and back; nothing where none is set, or nothing is built on the host."""
    request = inspection.request
    remote = request.entry.ccache_remote
    if remote in ("", ccache.NONE) or not request.entry.builds:
        return
    if missing(request.host, ["ccache", "cc"]):  # reported by the check of programs
        return
    if reason := ccache.try_remote(request.host, remote):
        said = f"the remote store {masked(remote)} of ccache on host {inspection.name}: {reason}"
        yield Finding(Level.WARNING, "ccache", said, ccache.ADVICE)
    else:
        yield Finding(Level.OK, "ccache", f"its remote store {masked(remote)} is read and written")
