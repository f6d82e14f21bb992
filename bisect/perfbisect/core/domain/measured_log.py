"""Keeps the events of a log that are the input of the search: builds, failures and runs.

If compiler options are added to all builds of a hunt, all earlier events are excluded from the log. If the build
of a commit with the added options has the same binary as the commit's build without the added options, the runs of the
commit are restored. If a proof with clean builds contradicts the runs of incremental builds, the events of incremental
builds are excluded, too.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from perfbisect.core.domain.events import BuildFinished, BuildStarted, CandidateSkipped, Event, RunFinished, Uncounted
from perfbisect.core.domain.facts import LEFT_OUT, BuildFacts, RunFacts

MeasuredEvent = BuildFinished | CandidateSkipped | RunFinished | Uncounted
Log = list[tuple[float, MeasuredEvent]]
SHARED = -1  # in place of the number of a host, for builds of build hosts, which every host gets


class FirstCommitsByBinary(dict[tuple[int, str], str]):
    """Maps each pair (number of a host, binary) to the first commit whose build on this host had this binary. The
    number of a host is 0 if the session has only one host, and SHARED for each build host.
    """

    def add_build(self, host: int, build: BuildFacts) -> str | None:
        """Add a build that a host has made. Returns another commit whose earlier build on the host has the same binary,
        or None."""
        first = self.setdefault((host, build.binary), build.commit)
        return None if first == build.commit else first


def host_or_shared_number(name: str, hosts: Mapping[str, int], build_hosts: Collection[str]) -> int:
    """The number of a host in ``FirstCommitsByBinary``: SHARED for a build host if there are several hosts."""
    return SHARED if len(hosts) > 1 and name in build_hosts else hosts.get(name, 0)


def is_of_build(event: Event) -> bool:
    """Whether the event is about a build, not about a run. All hunts of a session store the events about builds."""
    if isinstance(event, CandidateSkipped):
        return event.facts.is_build_failure
    return isinstance(event, BuildStarted | BuildFinished)


class ExcludedRuns(dict[str, tuple[str, list[tuple[float, RunFinished]]]]):
    """Maps each commit to its excluded runs, and to the binary with which these runs were made."""

    def exclude(self, log: Log, commits: Collection[str]) -> None:
        """Remove the events of ``commits`` from ``log``, and keep the runs of these commits for
        ``restore_if_same_binary``. Events of failed builds are removed, too, because a new build may succeed. The
        events of commits that --skip left out are not removed.
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

    def restore_if_same_binary(self, build: BuildFacts, log: Log) -> tuple[RunFacts, ...]:
        """If a new build has the same binary as the excluded build, put the runs of its commit back into ``log``,
        sorted by time, and return these runs; otherwise return ()."""
        binary, runs = self.pop(build.commit, ("", []))
        if binary != build.binary:
            return ()
        log += runs
        log.sort(key=lambda entry: entry[0])
        return tuple(run.facts for _, run in runs)
