"""Brings to a host what it builds from."""

from collections.abc import Generator
from pathlib import PurePosixPath

from perfbisect.core.domain.events import BuildProgress, BuildStarted, LabEvent
from perfbisect.host.protocol import Host
from perfbisect.lab.build import checkout
from perfbisect.lab.build.candidates import Candidates
from perfbisect.lab.steps import Steps


def send_sources(
    host: Host, name: str, candidates: Candidates, first: int
) -> Generator[LabEvent, None, tuple[PurePosixPath, bool]]:
    """Bring the sources to the host that builds, as a part of the build of the candidate ``first``.

    Returns the folder of the repository there, and whether that build has been announced.
    """
    assert candidates.repository
    announced = False
    sending = Steps(checkout.mirror(host, candidates.repository, name, candidates.tips()))
    for done, total in sending:
        if not announced:
            announced = True
            yield BuildStarted(first, candidates.describe(candidates.commits[first]))
        yield BuildProgress(first, done, total, "send")
    return sending.result, announced
