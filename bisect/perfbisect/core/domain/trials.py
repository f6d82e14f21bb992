"""Trials, which are measurements without a search: `bisect noise` compares a build with itself, `bisect compare`
compares several builds with the first build, and `bisect prove` compares good, bad, and bad without the culprit.

A trial consists of rounds. In a round, every build has one visit (one start of the server, with one or more runs) for
every workload. The sequence of the builds is reversed from round to round, so that slow changes of the machine favour
no build.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from perfbisect.core.domain.facts import TrialRun
from perfbisect.core.domain.metrics import Background, largest_client_load, most_delayed_background
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, TrialType

WorkloadAndBuild = tuple[int, int]  # the numbers of a workload and of a build in the request of the trial

PAIRS = 8  # paired runs of a build with itself, which show how much the ratio of two paired runs varies


def next_round(trial: SessionState) -> int:
    """The number of the round after the latest round with a run."""
    return max((run.round for run in trial.runs), default=-1) + 1


def pairs_made(trial: SessionState) -> int:
    """The number of pairs of paired runs that were made."""
    return sum(bool(run.facts.round) for run in trial.runs) // 2


def pairs_to_try(trial: SessionState) -> int:
    """The number of pairs of paired runs that a trial still has to make in addition to its rounds. In a comparison, the
    pairs show whether paired or interleaved runs are better; in an A/A test, the pairs show the noise of paired runs.
    """
    alone = trial.request.kind is TrialType.NOISE
    both = alone or len({build.commit or build.name for build in trial.request.subjects[:2]}) > 1
    open_ = both and trial.request.pairing is Pairing.AUTO and not trial.pairing
    return max(0, (PAIRS if alone else PAIRS_FIRST) - pairs_made(trial)) if open_ else 0


def paired_or_interleaved_runs(trial: SessionState, work: int | None = None) -> list[TrialRun]:
    """The paired runs if the trial compares builds by paired runs, otherwise the interleaved runs. Only runs of the
    workload ``work`` are returned, or runs of all workloads if ``work`` is None."""
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


def visits_of_each_round(trial: SessionState) -> list[WorkloadAndBuild]:
    """The workload and the build of each visit of a round. Failed builds are left out. A workload in which the baseline
    failed is left out for all builds.

    In a series of releases, however, the failure of the first build does not leave out the other builds. A proof with a
    failed build has no visits, because a proof needs all of its builds.
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
    """The numbers of the rounds that are still to be made. An incomplete round is made again, with a new number."""
    runs = Counter((run.round, run.work, run.subject) for run in paired_or_interleaved_runs(trial))
    due = [visit for visit in visits_of_each_round(trial) if visit[1] or not trial.is_paired]
    rounds = {run.round for run in trial.runs}
    complete = sum(all(runs[number, *visit] >= trial.request.runs for visit in due) for number in rounds)
    first = next_round(trial)
    return range(first, first + trial.request.rounds - complete)


def visiting_order(subjects: Sequence[int], round_number: int, *, shuffled: bool = False) -> Iterator[int]:
    """The builds or workloads ``subjects`` in the sequence in which a round visits them. The sequence is reversed in
    every second round: A B C, then C B A.

    If ``shuffled`` is true, the sequence is random, and changes after every two rounds. If a machine is slow for a part
    of a long round, this then affects random builds. Without shuffling, this would affect neighbouring builds, which
    would look like a change of speed between releases.
    """
    drawn = list(subjects)
    if shuffled:
        Random(round_number // 2).shuffle(drawn)
    return iter(drawn) if round_number % 2 == 0 else reversed(drawn)


def background_rates(trial: SessionState) -> Iterator[tuple[str, list[Background | None], list[float | None]]]:
    """Yields for each workload: its name, the rate of the background load (service level) that each build sustained,
    and the client load of each build. A workload without any background rate or client load is left out.

    The rate of a build is None if the workload has no background load, or if the rate was not measured. The client load
    is the share of time in which the client's measured threads were busy.
    """
    for number, work in enumerate(trial.request.works):
        builds = [
            [run.facts for run in trial.runs if (run.work, run.subject) == (number, subject)]
            for subject in range(len(trial.request.subjects))
        ]
        held, clients = [*map(most_delayed_background, builds)], [*map(largest_client_load, builds)]
        if any(held) or any(clients):
            yield work.name, held, clients
