"""What follows from work that failed: it is repeated, its candidate is skipped, or the hunt ends."""

import time
from collections.abc import Iterable

from perfbisect.core.domain.events import CandidateSkipped, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.errors import BuildFailed, EnvironmentFailure, JobLost, RunFailed, RunLost
from perfbisect.host.facts import BOOT, ask, is_full
from perfbisect.host.outcome import no_space
from perfbisect.host.protocol import Host
from perfbisect.lab.build.candidates import Candidates

LOSSES = 3  # in a row: so often work that was lost with its host is repeated


class RetryPolicy:
    """Decides for the candidates of one lab."""

    def __init__(self, host: Host, others: Iterable[Host], candidates: Candidates, workload: str) -> None:
        """``host`` measures; ``others`` contains the host that builds, if it is another. Stores the present boot of each."""
        self.host = host
        self.candidates = candidates
        self.workload = workload
        self._boots = {each.name: ask(each, BOOT) for each in (host, *others)}
        self._losses = 0  # in a row

    def succeeded(self) -> None:
        """A build or a run has ended well."""
        self._losses = 0

    def lost(self, host: Host, candidate: int, lost: JobLost, stage: str, began: float) -> Warned | CandidateSkipped:
        """A warning when work that was lost on ``host`` is to be repeated; after too many losses the candidate is skipped.

        Raises the loss instead when it is not the candidate's fault: that host has been restarted meanwhile, or the loss
        is its own.
        """
        self._losses += 1
        of_host = isinstance(lost, RunLost)
        if self._losses <= LOSSES:
            advice = lost.advice if of_host else "The host was restarted, or a user killed the work there."
            return Warned(f"{lost}: it is repeated", advice)
        if of_host or ask(host, BOOT) != self._boots[host.name]:
            raise lost
        self._losses = 0
        reason = f"it was killed {LOSSES + 1} times in a row, perhaps for taking all memory (see `dmesg`)"
        return self.failed(candidate, RunFailed(reason, stage=stage, log=str(host.root / "jobs")), began)

    def failed(self, candidate: int, failure: BuildFailed | RunFailed, began: float) -> CandidateSkipped:
        """The candidate is skipped.

        Raises EnvironmentFailure when the disk is full, which is not the candidate's fault, and when it is an end of
        the range: without it nothing can be found, and most often the machine or the recipe has to be fixed, after which
        the hunt can go on.
        """
        name = self.candidates.name(candidate)
        if is_full(self.host):
            raise no_space(self.host.name, f"{name} cannot be measured: {failure}") from failure
        if end := self.candidates.end(candidate):
            what = "cannot be built" if isinstance(failure, BuildFailed) else f"fails in workload {self.workload}"
            raise EnvironmentFailure(
                f"nothing can be compared, because {end}, {name}, {what}: {failure}", failure.advice
            ) from failure
        seconds = time.monotonic() - began
        commit = self.candidates.commits[candidate]
        return CandidateSkipped(candidate, SkipFacts(commit, failure.stage, str(failure), failure.log, seconds))
