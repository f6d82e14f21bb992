"""The part of a log of which observations are made: builds, failures and runs.

Options that are added to all builds empty it: what was measured before is set aside, and counts again for a commit whose
build with them is the same. So are incremental builds after a proof that contradicts them.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from perfbisect.core.domain.events import BuildFinished, BuildStarted, CandidateSkipped, Event, RunFinished, Uncounted
from perfbisect.core.domain.facts import LEFT_OUT, BuildFacts, RunFacts

Logged = BuildFinished | CandidateSkipped | RunFinished | Uncounted
Log = list[tuple[float, Logged]]
SHARED = -1  # in place of the number of a host, for builds that build hosts made: every host gets them


class Binaries(dict[tuple[int, str], str]):
    """The first commit built with each binary on each host: its number, 0 where there is one, SHARED for all build hosts."""

    def same_as(self, host: int, build: BuildFacts) -> str | None:
        """Add a build; the commit that was built with the same binary before, if that is another one."""
        first = self.setdefault((host, build.binary), build.commit)
        return None if first == build.commit else first


def host_of(name: str, hosts: Mapping[str, int], build_hosts: Collection[str]) -> int:
    """Where binaries are compared with those of a build that was made on the host of this name."""
    return SHARED if len(hosts) > 1 and name in build_hosts else hosts.get(name, 0)


def is_of_build(event: Event) -> bool:
    """Whether it concerns a build, of which all hunts of a group know; not one whose run has failed."""
    if isinstance(event, CandidateSkipped):
        return event.facts.of_build
    return isinstance(event, BuildStarted | BuildFinished)


class SetAside(dict[str, tuple[str, list[tuple[float, RunFinished]]]]):
    """The runs of each commit that has them, and the binary of which they are."""

    def take(self, log: Log, commits: Collection[str]) -> None:
        """Take everything about these commits out of a log but what the user leaves out: what has failed may build now."""
        runs: dict[str, list[tuple[float, RunFinished]]] = defaultdict(list)
        taken = [(at, event) for at, event in log if event.facts.commit in commits]
        for at, event in taken:
            if isinstance(event, RunFinished):
                runs[event.facts.commit].append((at, event))
        for _, event in taken:
            if isinstance(event, BuildFinished) and event.facts.commit in runs:
                self[event.facts.commit] = event.facts.binary, runs[event.facts.commit]
        log[:] = [
            (at, event)
            for at, event in log
            if event.facts.commit not in commits
            or (isinstance(event, CandidateSkipped) and event.facts.stage == LEFT_OUT)
        ]

    def give_back(self, build: BuildFacts, log: Log) -> tuple[RunFacts, ...]:
        """Put the runs of a commit back into a log, in order of time, where it was built again as the same binary."""
        binary, runs = self.pop(build.commit, ("", []))
        if binary != build.binary:
            return ()
        log += runs
        log.sort(key=lambda entry: entry[0])
        return tuple(run.facts for _, run in runs)
