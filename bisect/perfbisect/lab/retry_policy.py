"""What follows from work that failed: it is repeated, its candidate is skipped, or the hunt ends."""

import time

from perfbisect.core.domain.events import CandidateSkipped, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.errors import BuildFailed, EndFailed, JobLost, RunFailed, RunLost
from perfbisect.host.commands import no_space
from perfbisect.host.facts import BOOT, ask, is_full
from perfbisect.host.protocol import Host
from perfbisect.lab.build.candidates import Candidates

LOSSES = 3  # in a row: so often work that was lost with its host is repeated


class RetryPolicy:
    """Decides for the candidates of one lab."""

    def __init__(self, host: Host, candidates: Candidates, workload: str = "") -> None:
        """The work is done on ``host``; without a ``workload`` it builds. Asks for its present boot."""
        self.host = host
        self.candidates = candidates
        self.workload = workload
        self._boot = ask(host, BOOT)
        self._losses = 0  # in a row
        self._changed: set[str] = set()  # keys of what was found changed since a run has ended well

    def succeeded(self) -> None:
        """A build or a run has ended well."""
        self._losses = 0
        self._changed.clear()

    def changed(self, key: str) -> bool:
        """Whether a build, or a layout, that is not as it was made is made again: the second time, no run having ended
        well since, it is the candidate's failure. A layout shares files with its build, so both may be found changed in turn.
        """
        again = key not in self._changed
        self._changed.add(key)
        return again

    def lost(self, candidate: int, lost: JobLost, stage: str, began: float) -> Warned | CandidateSkipped:
        """A warning when work that was lost is to be repeated; after too many losses the candidate is skipped.

        Raises the loss instead when it is not the candidate's fault: the host has been restarted meanwhile, or the loss
        is its own.
        """
        self._losses += 1
        of_host = isinstance(lost, RunLost)
        if self._losses <= LOSSES:
            advice = lost.advice if of_host else "The host was restarted, or a user killed the work there."
            return Warned(f"{lost}: it is repeated", advice)
        if of_host or ask(self.host, BOOT) != self._boot:
            raise lost
        self._losses = 0
        reason = f"it was killed {LOSSES + 1} times in a row, perhaps for taking all memory (see `dmesg`)"
        return self.failed(candidate, RunFailed(reason, stage=stage, log=str(self.host.root / "jobs")), began)

    def failed(self, candidate: int, failure: BuildFailed | RunFailed, began: float) -> CandidateSkipped:
        """The candidate is skipped.

        Raises EnvironmentFailure when the disk is full, which is not the candidate's fault, and EndFailed for an end of
        the range: without it nothing can be found, and most often the machine or the recipe has to be fixed, after which
        the hunt can go on.
        """
        name = self.candidates.name(candidate)
        if is_full(self.host):
            raise no_space(self.host.name, f"{name} cannot be measured: {failure}") from failure
        if end := self.candidates.end(candidate):
            what = (
                "cannot be built"
                if isinstance(failure, BuildFailed) or not self.workload
                else f"fails in workload {self.workload}"
            )
            raise EndFailed(
                f"nothing can be compared, because {end}, {name}, {what}: {failure}", failure.advice
            ) from failure
        seconds = time.monotonic() - began
        commit = self.candidates.commits[candidate]
        return CandidateSkipped(candidate, SkipFacts(commit, failure.stage, str(failure), failure.log, seconds))
