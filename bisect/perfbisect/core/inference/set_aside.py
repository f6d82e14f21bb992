"""What was measured before options were added to all builds. It counts again for a commit whose build with them is the same."""

from collections import defaultdict

from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, Event, Remedied, RunFinished
from perfbisect.core.domain.facts import LEFT_OUT, BuildFacts, RunFacts
from perfbisect.core.inference.observations import Logged

Log = list[tuple[float, Logged]]


class SetAside(dict[str, tuple[str, list[tuple[float, RunFinished]]]]):
    """The runs of each commit that has them, and the binary of which they are."""

    def enter(self, at: float, event: Event, log: Log) -> None:
        """Add an event to a log of what observations are made of."""
        if isinstance(event, Remedied):
            self.take(log)
        if isinstance(event, BuildFinished):
            self.give_back(event.facts, log)
        if isinstance(event, BuildFinished | CandidateSkipped | RunFinished):
            log.append((at, event))

    def take(self, log: Log) -> None:
        """Take everything out of a log but what the user leaves out: what has failed may build now."""
        runs: dict[str, list[tuple[float, RunFinished]]] = defaultdict(list)
        for at, event in log:
            if isinstance(event, RunFinished):
                runs[event.facts.commit].append((at, event))
        for _, event in log:
            if isinstance(event, BuildFinished) and event.facts.commit in runs:
                self[event.facts.commit] = event.facts.binary, runs[event.facts.commit]
        log[:] = [
            (at, event) for at, event in log if isinstance(event, CandidateSkipped) and event.facts.stage == LEFT_OUT
        ]

    def give_back(self, build: BuildFacts, log: Log) -> tuple[RunFacts, ...]:
        """Put the runs of a commit back into a log, in order of time, where it was built again as the same binary."""
        binary, runs = self.pop(build.commit, ("", []))
        if binary != build.binary:
            return ()
        log += runs
        log.sort(key=lambda entry: entry[0])
        return tuple(run.facts for _, run in runs)
