"""The jobs of builds, known by their names."""

from collections.abc import Collection

from perfbisect.host import jobs
from perfbisect.host.protocol import Host

PREFIX = "build-"  # of their names


def end_all(host: Host, *, but: Collection[str] = ()) -> jobs.Job | None:
    """End the builds that run, but for one whose job has one of these names; that one is returned if it runs."""
    spared = None
    for job in jobs.running(host):
        if job.name in but:
            spared = job
        elif job.name.startswith(PREFIX):
            jobs.kill(host, job)
    return spared
