"""What earlier sessions have left on a host: processes are ended, old files removed."""

import re
from collections.abc import Iterator

from perfbisect.core.domain.events import Warned
from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab.build.build_jobs import PREFIX
from perfbisect.lab.measure import visit
from perfbisect.lab.server import service
from perfbisect.lab.upkeep.storage import CATEGORIES
from perfbisect.wording.text import listed

KEPT = 100  # logs of failed builds, and as many jobs that failed or were interrupted

# $1 the root, $2 how many stay, $3 the form of a log's name
_LOGS = """\
cd -- "$1" && [ -d logs ] || exit 0
find logs -mindepth 1 -maxdepth 1 -type f -regextype posix-extended -regex "logs/($3)" -printf '%T@ %p\\0' |
    sort -zrn | tail -zn +"$(($2 + 1))" | cut -zd ' ' -f 2- | xargs -0 -r rm -f --
"""

_CALLED = {visit.NAME: "a load", service.NAME: "a server", "prepare": "the loading of data"}


def tidy(host: Host) -> Iterator[Warned]:
    """End the jobs that a killed session has left running, with a warning; builds stay, since one may be needed next.

    Removes old jobs, old logs of failed builds, and temporary files of compilers that were killed.
    """
    running = jobs.running(host)
    builds = [job for job in running if job.name.startswith(PREFIX)]
    # A job whose leader is killed between the two listings is in both.
    ended = dict.fromkeys((*jobs.orphaned(host), *(job for job in running if job not in builds)))
    for job in ended:
        jobs.kill(host, job, grace=5)
    if ended:
        many, were = ("a job", "was") if len(ended) == 1 else (f"{len(ended)} jobs", "were")
        what = listed(sorted(_CALLED.get(job.name, job.name) for job in ended))
        have = "has" if len(ended) == 1 else "have"
        yield Warned(
            f"{many} of an earlier session on host {host.name}, {what}, {were} still running and {have} been ended"
        )
    prune(host)
    host.run(["sh", "-c", _LOGS, "logs", str(host.root), str(KEPT), CATEGORIES["logs"][1]], timeout=600)
    if not builds:  # whose compilers have files there
        host.run(["rm", "-rf", "--one-file-system", "--", str(host.root / "tmp")], timeout=600)


def prune(host: Host, keep: int = KEPT) -> None:
    """Remove the folders of all jobs that have ended, except for the last ``keep``."""
    script = 'cd -- "$1" && find jobs -mindepth 1 -maxdepth 1 -type d -printf "%f\\n"'  # follows no link
    listed = host.run(["sh", "-c", script, "ids", str(host.root)], check=False).stdout.splitlines()
    alive = {job.id for job in jobs.running(host)}
    ids = sorted(name for name in listed if re.fullmatch(jobs.ID, name))  # they begin with the time
    old = [job_id for job_id in ids[:-keep] if job_id not in alive]
    for some in range(0, len(old), 1000):
        folders = [str(host.root / "jobs" / job_id) for job_id in old[some : some + 1000]]
        host.run(["rm", "-rf", "--one-file-system", "--", *folders], timeout=600)
