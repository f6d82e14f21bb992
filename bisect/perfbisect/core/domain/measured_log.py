"""The events of a log from which observations are made: builds, failures and runs.

If options are added to all builds, all earlier events are excluded from the log. The events of a commit are restored if
its build with the options has the same binary. After a proof that contradicts incremental builds, the events of
incremental builds are excluded, too.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from perfbisect.core.domain.events import BuildFinished, BuildStarted, CandidateSkipped, Event, RunFinished, Uncounted
from perfbisect.core.domain.facts import LEFT_OUT, BuildFacts, RunFacts

MeasuredEvent = BuildFinished | CandidateSkipped | RunFinished | Uncounted
Log = list[tuple[float, MeasuredEvent]]
SHARED = -1  # in place of the number of a host, for builds of build hosts, which every host gets


class CommitsByBinary(dict[tuple[int, str], str]):
    """(number of a host, binary) → the first commit that was built with the binary on the host. The number is 0 if the
    session has only one host, and SHARED for all build hosts.
    """

    def add_build(self, host: int, build: BuildFacts) -> str | None:
        """Add a build of a host; return another commit that was built earlier with the same binary, or None."""
        first = self.setdefault((host, build.binary), build.commit)
        return None if first == build.commit else first


def binary_host_number(name: str, hosts: Mapping[str, int], build_hosts: Collection[str]) -> int:
    """The number of a host in ``CommitsByBinary``: SHARED for a build host, if there are several hosts."""
    return SHARED if len(hosts) > 1 and name in build_hosts else hosts.get(name, 0)


def is_of_build(event: Event) -> bool:
    """Whether the event is about a build, so that all hunts of a session store the event; false for a failed run."""
    if isinstance(event, CandidateSkipped):
        return event.facts.is_build_failure
    return isinstance(event, BuildStarted | BuildFinished)


class ExcludedRuns(dict[str, tuple[str, list[tuple[float, RunFinished]]]]):
    """The excluded runs of each commit, with the binary of these runs."""

    def exclude(self, log: Log, commits: Collection[str]) -> None:
        """Remove the events of ``commits`` from ``log``, and keep their runs for ``restore``. Events of failed builds
        are removed, too, because a new build may succeed; events of candidates that --skip left out stay.
        """
        runs: dict[str, list[tuple[float, RunFinished]]] = defaultdict(list)
        removed = [(at, event) for at, event in log if event.facts.commit in commits]
        for at, event in removed:
            if isinstance(event, RunFinished):
                runs[event.facts.commit].append((at, event))
        for _, event in removed:
            if isinstance(event, BuildFinished) and event.facts.commit in runs:
                self[event.facts.commit] = event.facts.binary, runs[event.facts.commit]
        log[:] = [
            (at, event)
            for at, event in log
            if event.facts.commit not in commits
            or (isinstance(event, CandidateSkipped) and event.facts.stage == LEFT_OUT)
        ]

    def restore(self, build: BuildFacts, log: Log) -> tuple[RunFacts, ...]:
        """Put the events of a commit back into ``log`` in order of time, unless its binary changed; return its runs."""
        binary, runs = self.pop(build.commit, ("", []))
        if binary != build.binary:
            return ()
        log += runs
        log.sort(key=lambda entry: entry[0])
        return tuple(run.facts for _, run in runs)
