"""What mends a known error is tried on the commit that fails; the hunt then goes on with it."""

import shlex
from collections.abc import Generator
from dataclasses import replace

import msgspec

from perfbisect.core.domain.events import Remedied, Warned
from perfbisect.core.domain.settings import Flags
from perfbisect.errors import BuildFailed, JobLost
from perfbisect.lab.building.known_errors import KnownFailure
from perfbisect.lab.building.log_parser import Progress
from perfbisect.lab.building.pipeline import build
from perfbisect.lab.building.plan import BuildContext

# A header that is included before a source can define _GNU_SOURCE may leave functions undeclared: these return an int then, and
# half of what was a pointer.
WHOLE = Flags("-Werror=int-conversion -Werror=int-to-pointer-cast")
MOST = 3  # builds: a compiler that stops at one header does not say that others are missing, too


class Mended(Exception):
    """A commit builds with further options, which all builds of its hunt get from here on: no failure."""

    def __init__(self, event: Remedied) -> None:
        super().__init__(event.why)
        self.event = event


def mend(context: BuildContext, sha: str, failure: KnownFailure) -> Generator[Progress | Warned]:
    """Build a commit that fails for a known reason with what mends that. Raises Mended where it builds then."""
    known, flags = failure.known, context.builder.flags
    for _ in range(MOST):
        more = flags.plus(known.flags)
        undone = "-Wno-error=int-" in known.flags.cflags and WHOLE.cflags in flags.cflags
        if more == flags or undone or not known.by_itself:
            return
        flags = more.plus(WHOLE) if "-include" in known.flags.cflags else more
        options = shlex.join(flags.words)
        yield Warned(
            f"{sha[:10]} does not build for {known.name}: it is tried with {known.option}",
            "--no-remedies tries nothing.",
        )
        try:
            yield from build(replace(context, builder=msgspec.structs.replace(context.builder, flags=flags)), sha)
        except (BuildFailed, JobLost) as again:
            yield Warned(f"with {options}: {again}", again.advice)
            if not isinstance(again, KnownFailure):
                return
            known = again.known
        else:
            raise Mended(Remedied(flags, f"{sha[:10]} does not build without {options}, for {failure.known.name}"))
