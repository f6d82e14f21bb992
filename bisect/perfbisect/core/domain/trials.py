"""Measurements without a search: one build against itself (`bisect noise`), several builds against the first of them
(`bisect compare`), or the ends of a hunt and bad without the culprit (`bisect prove`).

A trial consists of rounds. In a round every build is visited once for every workload. The order of the builds is
reversed from round to round, so that slow changes of the machine favour no build.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from perfbisect.core.domain.facts import TrialRun
from perfbisect.core.domain.metrics import Background, largest_client_load, worst_background
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, TrialType

PAIRS = 8  # paired runs of a build with itself, which show how much the ratio of two paired runs varies


def next_round(trial: SessionState) -> int:
    """The number of the round after the latest round with a run."""
    return max((run.round for run in trial.runs), default=-1) + 1


def pairs_made(trial: SessionState) -> int:
    """The number of paired runs that were made; each pair counts as one."""
    return sum(bool(run.facts.round) for run in trial.runs) // 2


def pairs_to_try(trial: SessionState) -> int:
    """The number of paired runs still to be made in addition to the rounds. In a comparison these pairs decide between
    paired and interleaved runs; in an A/A they show the noise of pairs.
    """
    alone = trial.request.kind is TrialType.NOISE
    both = alone or len({build.commit or build.name for build in trial.request.subjects[:2]}) > 1
    open_ = both and trial.request.pairing is Pairing.AUTO and not trial.pairing
    return max(0, (PAIRS if alone else PAIRS_FIRST) - pairs_made(trial)) if open_ else 0


def comparable_runs(trial: SessionState, work: int | None = None) -> list[TrialRun]:
    """The paired runs if the trial compares builds by paired runs, otherwise the interleaved runs; of the workload
    ``work``, or of all workloads if ``work`` is None."""
    runs = trial.runs if work is None else runs_of_workload(trial, work)
    return [run for run in runs if bool(run.facts.round) is trial.is_paired]


def runs_of_workload(trial: SessionState, work: int) -> list[TrialRun]:
    """The runs of a workload. If one command gives the results of several workloads, each of its runs is returned with
    the result of the workload ``work``.
    """
    if not trial.request.shared:
        return [run for run in trial.runs if run.work == work]
    name = trial.request.works[work].name
    values = ((run, run.facts.results.get(name)) for run in trial.runs)
    return [replace(run, work=work, facts=replace(run.facts, reported=value, results={})) for run, value in values]


def visits_of_round(trial: SessionState) -> list[tuple[int, int]]:
    """The workload and the build of each visit of a round. Failed builds are left out, and so are workloads in which
    the baseline failed.

    In a series of releases, every failed build is left out, also the first build, and the other builds are visited. A
    proof with a failed build has no visits, because a proof needs all of its builds.
    """
    request, failed = trial.request, {(skip.work, skip.subject) for skip in trial.skips}
    if request.kind is TrialType.PROVE and (failed or any(build.trouble for build in request.subjects)):
        return []
    base = None if request.series and not trial.is_paired else 0
    return [
        (work, number)
        for work in range(1 if request.shared else len(request.works))
        for number, subject in enumerate(request.subjects)
        if not subject.trouble and not failed & {(work, number), (work, base)}
    ]


def remaining_rounds(trial: SessionState) -> range:
    """The numbers of the rounds that are still to be made; an incomplete round is made again under a new number."""
    runs = Counter((run.round, run.work, run.subject) for run in comparable_runs(trial))
    due = [visit for visit in visits_of_round(trial) if visit[1] or not trial.is_paired]
    complete = sum(
        all(runs[number, *visit] >= trial.request.runs for visit in due) for number in {run.round for run in trial.runs}
    )
    first = next_round(trial)
    return range(first, first + trial.request.rounds - complete)


def visiting_order(subjects: Sequence[int], round_number: int, *, shuffled: bool = False) -> Iterator[int]:
    """The order in which subjects are visited in a round. The order is reversed in every second round: A B C, then C B
    A.

    If ``shuffled``, the order is random, and changes after every two rounds. If a machine is slow for a part of a long
    round, the slow visits are then of random subjects. Without shuffling, the slow visits are of neighbouring subjects,
    which looks like a change of speed.
    """
    drawn = list(subjects)
    if shuffled:
        Random(round_number // 2).shuffle(drawn)
    return iter(drawn) if round_number % 2 == 0 else reversed(drawn)


def background_rates(trial: SessionState) -> Iterator[tuple[str, list[Background | None], list[float | None]]]:
    """For each workload: its name, the background rate (service level) of each build, and the client load of each
    build.

    The background rate is None if the workload has no background load, or if its rate was not measured. The client load
    is the share of time in which the client's measured threads were busy.
    """
    for number, work in enumerate(trial.request.works):
        builds = [
            [run.facts for run in trial.runs if (run.work, run.subject) == (number, subject)]
            for subject in range(len(trial.request.subjects))
        ]
        held, clients = [*map(worst_background, builds)], [*map(largest_client_load, builds)]
        if any(held) or any(clients):
            yield work.name, held, clients
