"""Whether a commit that moves code executes what the code before it executed: by counts of instructions that repeat."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.metrics import INSTRUCTIONS, exact
from perfbisect.core.domain.orders import CodePlacement, Step, Verdict
from perfbisect.core.inference.from_log import Binaries, Logged, readable
from perfbisect.core.inference.metric_choice import CLEAR
from perfbisect.core.inference.noise_model import EXACT

RESOLVED = CLEAR * math.sqrt(2) * EXACT.noise  # in log units: two counts that differ by less are taken for equal

Log = Sequence[tuple[float, Logged]]


def sides(step: Step, commits: Sequence[str], log: Log) -> tuple[str, ...]:
    """The commit of a step, and those it was compared with; of equal binaries the one built first, which has their runs."""
    binaries = Binaries()
    builds = [event.facts for _, event in log if isinstance(event, BuildFinished)]
    first = {build.commit: binaries.same_as(0, build) or build.commit for build in builds}
    named = (commits[node] for node in (step.candidate, *step.parents))
    return tuple(dict.fromkeys(first.get(sha, sha) for sha in named))


def with_counts(verdict: Verdict, commits: Sequence[str], log: Log) -> Verdict:
    """A verdict of code placement with what the counts in ``log`` say of it; any other as it is.

    ``commits`` are those of the nodes. Without a count of each side nothing is said.
    """
    if not isinstance(verdict, CodePlacement):
        return verdict
    after, *before = (_count(sha, log) for sha in sides(verdict.step, commits, log))
    known = [count for count in before if count is not None]
    if after is None or not known or len(known) < len(before):
        return verdict
    return replace(verdict, same_counts=all(abs(after - count) <= RESOLVED for count in known))


def _count(sha: str, log: Log) -> float | None:
    """The logarithm of the instructions that an operation of a commit executes; None where they were not counted."""
    runs = [event.facts for _, event in log if isinstance(event, RunFinished) and event.facts.commit == sha]
    counts = [count for run in runs if exact(run, INSTRUCTIONS) and (count := readable(run, INSTRUCTIONS)) is not None]
    return median(counts) if counts else None
