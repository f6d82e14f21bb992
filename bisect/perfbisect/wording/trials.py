"""Writes sentences about trials: comparisons of builds, proofs by a revert of the culprit, fitness checks of a host;
and about paired runs."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfbisect.core.domain.events import PairingChosen
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import PairingComparison
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import GAIN
from perfbisect.core.domain.trials import paired_or_interleaved_runs
from perfbisect.core.inference.classification import ratios_to_good
from perfbisect.core.stats.fitness import Fault, Unfit
from perfbisect.core.stats.paired_comparison import (
    BAD,
    GOOD,
    RevertOutcome,
    WorkloadRatios,
    regained_by_revert,
    revert_outcome,
)
from perfbisect.wording.quantities import change, count, decimals, moment, percent, ratio, share
from perfbisect.wording.text import listed, metric_title, printable, shell_word

if TYPE_CHECKING:
    from perfbisect.core.stats.release_series import LevelStep

LOWER = ("lower", "higher")
# metric → words for a ratio below 1 and for a ratio above 1
WORDS = {"qps": ("slower", "faster"), "rate": ("slower", "faster"), "latency": ("faster", "slower")}


def difference_text(metric: str, ratio: float) -> str:
    """The ratio of a metric, written as a difference, such as "12 % slower" or "3.1 % higher"."""
    return f"{percent(abs(ratio - 1))} {WORDS.get(metric, LOWER)[ratio > 1]}"


def cpu_time_suffix(chosen: PairingChosen | None) -> str:
    """A suffix for the name of a metric: " by CPU time" if its ratios are computed from CPU time in place of wall-clock
    time; otherwise ""."""
    return " by CPU time" * bool(chosen and chosen.together and chosen.by_cpu)


def ratio_title(metric: str, chosen: PairingChosen | None) -> str:
    """The title of a table column with ratios to the good end, such as rQPS, rcpu/o or "rQPS by CPU"."""
    return f"r{metric_title(metric)}{cpu_time_suffix(chosen).removesuffix(' time')}"


def compared_metric_title(trial: SessionState) -> str:
    """The name of the compared metric. If lower values of this metric are better, a note follows that ratios above 1
    are worse."""
    metric = trial.request.metric
    name = "Throughput" if metric == "qps" else metric
    worse = f" (above 1: {'slower' if metric == 'latency' else 'worse'})"
    return f"{name}{cpu_time_suffix(trial.pairing)}{worse * (not find_metric(metric).higher_is_better)}"


def run_counts(trial: SessionState, rounds: str = "") -> str:
    """A text with the numbers of rounds and runs of a trial, such as "5 rounds with 4 runs of each build".

    If ``rounds`` is given, it replaces the number of requested rounds.
    """
    runs, request, number_of_runs = paired_or_interleaved_runs(trial), trial.request, len(trial.runs)
    if len(runs) == number_of_runs:
        of_builds = " of each build" if len(request.subjects) > 1 else ""
        of_each = f"{count(request.runs, 'run')}{of_builds}"
        if trial.is_paired and len(request.subjects) > 2:
            of_each = f"{count(request.runs, 'pair')} of runs of the first build and each other build"
        return f"{rounds or count(request.rounds, 'round')} with {of_each}"
    way, other_way = ("paired", "interleaved")[:: 1 if trial.is_paired else -1]
    purpose = "only to choose between paired and interleaved runs" if trial.pairing else "for information only"
    counted = f"{count(len(runs), f'{way} run')} in {count(len({run.round for run in runs}), 'round')}"
    return f"{counted}; {count(number_of_runs - len(runs), f'further {other_way} run')} {purpose}"


MORE_ROUNDS = "Try next: more rounds (--visits), or a quieter host."
STATUS = {RevertOutcome.REGAINS: 0, RevertOutcome.NOTHING: 1, RevertOutcome.NOT_LOST: 1}
UNDECIDED = 2


def part_proofs(state: SessionState, history: str = "") -> Iterator[str]:
    """Sentences about the two proofs that a part of the culprit's diff is slow: the build of the parent with only this
    part, and the build of the culprit without this part.

    See ``core/search/parts.py``.
    """
    started = state.started
    if not started or not started.proofs:
        return
    ratios_by_commit = ratios_to_good(state, state.metric, state.hosts_if_several, started.host_classes)
    metric_name, good = f"{metric_title(state.metric)}{cpu_time_suffix(state.pairing)}", state.commits[0][:10]
    (_, needed), (_, users) = started.proofs
    alone = f"with {count(needed, 'part')} that it needs to build" if needed else "alone"
    dependants = f" and {count(users, 'part')} that need it to build" * bool(users)
    descriptions = f"Put on {started.good} {alone}", f"{started.bad} without it{dependants}"
    for (sha, _), description in zip(started.proofs, descriptions, strict=True):
        row = state.facts_of(sha)
        if interval := ratios_by_commit.get(sha):
            yield f"{description}: {metric_name} is {ratio(interval)} of {metric_name} of {good}."
        elif row.skip:
            yield f"{description}: not measured, because it fails: {printable(row.skip.reason)}."
        else:
            yield f"{description}: not measured. To measure it: bisect resume {state.id} --max-time MORE{history}"


def proof_exit_status(trial: SessionState) -> int:
    """The exit status of a proof: 0 if the revert of the culprit regains speed, 1 if the revert regains no speed or
    there is no loss of speed, 2 if the runs do not decide this."""
    return STATUS.get(revert_outcome(regained_by_revert(trial)), UNDECIDED)


def comparison_sentence(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Iterator[str]:
    """Sentences with the result of the comparison of two builds.

    If the workload is a command with several results, the sentences list only the results that differ between the
    builds.
    """
    names = [printable(build.name) for build in trial.request.subjects]
    if trial.request.shared and len(names) == 2:
        yield from changed_result_lines(trial, rows)
    if len(rows) != 1 or len(names) != 2:
        return
    if (comparison := rows[0].ratios[0]) is None:
        yield from no_result_sentences(trial, "Not compared")
    if not comparison or not comparison.interval:  # one round gives no interval
        return
    old_name, new_name = names
    metric = trial.request.metric
    metric_text = "" if metric in WORDS else f"{metric_title(metric)} of "
    less, more = WORDS.get(metric, LOWER)
    runs = count(min(Counter(run.subject for run in paired_or_interleaved_runs(trial, 0)).values()), "run")
    low, high, cpu_suffix = comparison.interval.low - 1, comparison.interval.high - 1, cpu_time_suffix(trial.pairing)
    if comparison.excludes_one:
        nearer, farther = sorted((100 * abs(low), 100 * abs(high)))
        places = 0 if farther - nearer >= 2 else 1 if farther - nearer >= 0.2 else 2
        yield f"{metric_text}{new_name} is {difference_text(metric, comparison.ratio)} ({decimals(nearer, places)}–{decimals(farther, places)} %) than {metric_text}{old_name}{cpu_suffix}: {runs} of each build."
    else:
        span = f"{percent(-low)} {less} and {percent(high)} {more}"
        yield f"No difference is shown: {metric_text}{new_name} is between {span} than {metric_text}{old_name}{cpu_suffix}; {runs} of each build."
        yield MORE_ROUNDS


def changed_result_lines(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Iterator[str]:
    """Lines that list which results of a command became worse and which became better, the largest difference first."""
    metric, lines_by_direction = trial.request.metric, dict[bool, list[tuple[float, str]]]()
    for row in rows:
        if (comparison := row.ratios[0]) and comparison.real and comparison.interval:
            better = (comparison.ratio > 1) is find_metric(metric).higher_is_better
            line = f"  {row.work}: ×{ratio(comparison.interval)}, {difference_text(metric, comparison.ratio)}"
            lines_by_direction.setdefault(better, []).append((-abs(math.log(comparison.ratio)), line))
    numbers = (
        f"{len(lines_by_direction.get(False, []))} became worse and {len(lines_by_direction.get(True, []))} better"
    )
    yield f"Of {count(len(rows), 'result')}, {numbers}. At most 5 % of these differences are expected to be false."
    for better, word in ((False, "Worse"), (True, "Better")):
        if lines := lines_by_direction.get(better):
            yield f"{word}:"
            yield from (printable(line) for _, line in sorted(lines))


def proof_sentences(trial: SessionState, history: str = "") -> Iterator[str]:
    """Sentences about a proof by a revert of the culprit. The sentences contain commands; ``history`` is the option
    --history for these commands, or ""."""
    request, regained_share = trial.request, regained_by_revert(trial)
    good, bad = (printable(request.subjects[build].name) for build in (GOOD, BAD))
    commits, hunt = (request.reverts.commits, request.reverts.hunt) if request.reverts else ((), 0)
    if regained_share is None:
        yield from no_result_sentences(trial, "Not proven", history)
        return
    if regained_share.share is None:
        alike = f"{good} and {bad} are not shown to differ in {metric_title(request.metric)}"
        yield f"Nothing can be regained: in these {regained_share.rounds} rounds {alike}."
        yield MORE_ROUNDS
        return
    worse = (regained_share.lost > 0) == find_metric(request.metric).higher_is_better
    low, high = regained_share.share.low, regained_share.share.high
    share_text = f"{share(regained_share.share.middle)} ({share(low)[:-2]} to {share(high)}) of what was {'lost' if worse else 'gained'}{cpu_time_suffix(trial.pairing)}"
    names = listed([commit[:10] for commit in commits]) if commits else ""
    yield f"Reverting {names} on {bad} {'regains' if worse else 'takes back'} {share_text}."
    match revert_outcome(regained_share):
        case RevertOutcome.REGAINS if high < 1:
            yield "The revert removes only a part of the difference: other changes, or code that depends on the reverted commits, cause the rest."
        case RevertOutcome.REGAINS if low > 1:
            yield "The revert removes more than the whole difference: other changes have the opposite effect, or the revert has an effect of its own."
        case RevertOutcome.REGAINS:
            yield "There is no evidence that other changes contribute to the difference."
        case RevertOutcome.NOTHING:
            doubt = f"the verdict of hunt {hunt} is in doubt"
            zero = f"The interval includes 0 %: {doubt}, or later commits cause the same loss."
            yield zero if high > 0 else f"The revert makes {metric_title(request.metric)} worse: {doubt}."
            yield f"Try next: compare the culprit with its parent; `bisect show {hunt}{history}` prints the command."
        case _:
            yield "The interval includes 0 % and 100 %."
            yield MORE_ROUNDS


def no_result_sentences(trial: SessionState, beginning: str, history: str = "") -> Iterator[str]:
    """Two sentences: why a trial has no result (this sentence begins with ``beginning``), and an advice."""
    subjects = trial.request.subjects
    failed = [(build.name, build.trouble) for build in subjects if build.trouble]
    failed += [(subjects[skip.subject].name, skip.facts.reason) for skip in trial.skips]
    if failed:
        name, reason = failed[0]
        yield printable(f"{beginning}: {name} cannot be measured: {reason}.")
        yield "Try next: another revision; or make this revision build and run, with --patch FILE or a change of the recipe."
    else:
        requirement = f"at least two rounds must have a value of {metric_title(trial.request.metric)} for each build"
        yield printable(f"{beginning}: {trial.failure or requirement}.")
        yield MORE_ROUNDS if trial.state == "done" else f"Try next: bisect resume {trial.name}{history}"


def paired_noise_sentences(
    runs_name: str, paired_noise: float, cpu_noise: float | None, interleaved_noise: float
) -> str:
    """Sentences that compare the standard deviation of the ratio of two runs between paired and interleaved runs. The
    text begins with the word "ratio", so that the caller can put an article before this word."""
    cpu = f" ({percent(cpu_noise)} by CPU time)" if cpu_noise is not None else ""
    paired = f"{percent(paired_noise)}{cpu} if they run at the same time (paired)"
    interleaved = f"{percent(interleaved_noise)} if they run in turn (interleaved)"
    gains = min(paired_noise, cpu_noise or paired_noise) < GAIN * interleaved_noise
    conclusion = f"Paired runs {'' if gains else 'do not '}have less noise here; --pairing auto, the default, chooses between them"
    return f"ratio of two {runs_name} has a standard deviation of {paired}, and of {interleaved}. {conclusion}"


def pairing_chosen(ways: PairingComparison, good: str = "good", bad: str = "bad") -> PairingChosen:
    """The event with the choice between paired and interleaved runs. Its text gives the evidence from both kinds of
    runs."""
    if ways.differ_by_waiting:
        evidence = f"{bad} has {ratio(ways.paired_ratio)} of {good}, but their CPU times are equal, so one of them waits longer"
        reason = printable(f"From here on, builds are compared by time instead of CPU time: {evidence}.")
        return PairingChosen(True, reason, beside=ways.paired_ratio)
    noise = percent(ways.interleaved_noise)
    if ways.is_clear:
        evidence = f"interleaved runs already show {change(ways.interleaved_ratio.middle)}, clearly more than {noise}, the standard deviation of their ratio"
        return PairingChosen(False, f"Builds run interleaved: {evidence}.")
    if ways.waiting_share:
        waiting = percent(ways.waiting_share)
        evidence = f"the builds wait for {waiting} of their time, and paired runs may wait for each other"
        return PairingChosen(False, f"Builds run interleaved: {evidence}.")
    paired_text = f"{bad} has {ratio(ways.paired_ratio)} of {good}{' by CPU time' * ways.uses_cpu_time}"
    noises = f"the standard deviations are {percent(ways.paired_noise)} and {noise}"
    evidence = f"{paired_text} if paired and {ratio(ways.interleaved_ratio)} if interleaved; {noises}"
    way = "in pairs" if ways.chooses_paired else "interleaved"
    reason = f"Builds run {way}: {evidence}{', so paired runs disturb each other' * ways.hides_difference}."
    if ways.is_contradictory and not ways.hides_difference:
        reason += f" The two ratios contradict each other: the difference between {good} and {bad} may depend on simultaneous runs."
    alone, beside = ways.interleaved_ratio, ways.paired_ratio
    return PairingChosen(ways.chooses_paired, printable(reason), ways.uses_cpu_time, alone=alone, beside=beside)


def step_sentence(step: "LevelStep", names: Sequence[str]) -> str:
    """A sentence about a change of the level in a series of releases: the two releases between which it is, the 95 %
    interval of this place, and the size of the change.
    """
    text = f"{names[step.before]} → {names[step.after]}"
    if (step.first, step.last) != (step.before, step.after):
        text += f" (95 %: within {names[step.first]} to {names[step.last]})"
    text += f": ×{ratio(step.size)}, {change(step.size.middle)}"
    if step.alone:
        text += f"; seen in {names[step.after]} alone: a later release must confirm it (another code layout can make a single release slower or faster)"
    return text


def why_unfit(unfit: Unfit) -> str:
    """A clause that says since when and why a host is unfit, such as "since 2026-03-01 it is 7.1 % slower in fitness
    checks"."""
    slower = f"it is {percent(1 - unfit.level)} slower" if Fault.LEVEL in unfit.faults else ""
    noisier = f"its noise is {percent(unfit.facts.noise or 0)}" if Fault.NOISE in unfit.faults else ""
    return f"since {moment(unfit.since)[:10]} {' and '.join(filter(None, (slower, noisier)))} in fitness checks"


def unfit_host(name: str, unfit: Unfit, history: str = "") -> str:
    """Sentences that say that a host is unfit, why, what the user can do, and by which command the user can accept the
    host again."""
    advice = "Look for other load, throttling or changed settings. If the change is intended:"
    return f"{name} is unfit: {why_unfit(unfit)}. {advice} bisect hosts --accept {shell_word(name)}{history}"
