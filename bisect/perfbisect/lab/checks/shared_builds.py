"""Can this machine use the shared builds of the user?"""

from collections.abc import Iterator

from perfbisect.lab.build.shared.builds import SharedBuilds
from perfbisect.lab.checks.finding import Finding, Level
from perfbisect.masking import masked


def shared_findings(shared: SharedBuilds | None) -> Iterator[Finding]:
    """Whether an object can be written, read and removed; nothing where no builds are shared."""
    if shared is None:
        return
    try:
        shared.try_out()
    except OSError as trouble:
        reason = masked(trouble.strerror or str(trouble))
        said = f"the shared builds in {shared.address} cannot be used from this machine: {reason}"
        yield Finding(Level.WARNING, "shared", said, "Hunts go on without them: they build for themselves.")
    else:
        signed = "signed" if shared.signed else "not signed: who can write there can run code on your hosts"
        yield Finding(Level.OK, "shared", f"builds are shared in {shared.address}, {signed}")
