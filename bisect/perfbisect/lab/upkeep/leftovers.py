"""What earlier sessions have left on a host: processes are ended, old files removed."""

from collections.abc import Iterator

from perfbisect.core.domain.events import Warned
from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab.build.pipeline import PREFIX
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
    jobs.prune(host, KEPT)
    host.run(["sh", "-c", _LOGS, "logs", str(host.root), str(KEPT), CATEGORIES["logs"][1]], timeout=600)
    if not builds:  # whose compilers have files there
        host.run(["rm", "-rf", "--one-file-system", "--", str(host.root / "tmp")], timeout=600)
