"""What sessions before this one have left on a host: it is ended, or removed when there is enough of it."""

from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab.build import PREFIX

KEPT = 100  # logs of failed builds, and as many jobs that failed or were interrupted

_LOGS = """\
[ ! -d "$1/logs" ] || { cd "$1/logs" && ls -1t | tail -n +"$(($2 + 1))" | tr '\\n' '\\0' | xargs -0 -r rm -f --; }
"""


def tidy(host: Host) -> None:
    """End what a session that was killed has left running, but for builds, of which one may be wanted next; remove old
    jobs, old logs of failed builds, and temporary files of compilers that were killed.
    """
    for job in jobs.orphaned(host):
        jobs.kill(host, job, grace=5)
    builds = []
    for job in jobs.running(host):
        if job.name.startswith(PREFIX):
            builds.append(job)
        else:
            jobs.kill(host, job, grace=5)
    jobs.prune(host, KEPT)
    host.run(["sh", "-c", _LOGS, "logs", str(host.root), str(KEPT)], timeout=600)
    if not builds:  # whose compilers have files there
        host.run(["rm", "-rf", "--", str(host.root / "tmp")], timeout=600)
