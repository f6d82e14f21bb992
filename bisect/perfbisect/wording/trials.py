"""Comparisons of builds in sentences: the metric with its direction, differences, the runs that figures are from; what a
comparison of two builds, a revert of the culprit, and fitness checks of a host show; and how builds are compared.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfbisect.core.domain.events import PairingChosen
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import PairingComparison
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import GAIN
from perfbisect.core.domain.trials import comparable_runs
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
WORDS = {"qps": ("slower", "faster"), "rate": ("slower", "faster"), "latency": ("faster", "slower")}  # below 1, above 1


def difference(metric: str, of_one: float) -> str:
    """A ratio of a metric as a difference from 1: 12 % slower, 3.1 % higher."""
    return f"{percent(abs(of_one - 1))} {WORDS.get(metric, LOWER)[of_one > 1]}"


def by_cpu(chosen: PairingChosen | None) -> str:
    """What follows the name of a metric whose ratios are by CPU time, where its values are by the time of day; or ""."""
    return " by CPU time" * bool(chosen and chosen.together and chosen.by_cpu)


def ratio_title(metric: str, chosen: PairingChosen | None) -> str:
    """The name of a ratio to the good end in a column: rQPS, rcpu/o, rQPS by CPU."""
    return f"r{metric_title(metric)}{by_cpu(chosen).removesuffix(' time')}"


def relative_metric(trial: SessionState) -> str:
    """What is relative, and of a cost which way is worse."""
    metric = trial.request.metric
    what = "Throughput" if metric == "qps" else metric
    worse = f" (above 1: {'slower' if metric == 'latency' else 'worse'})"
    return f"{what}{by_cpu(trial.pairing)}{worse * (not find_metric(metric).higher_is_better)}"


def runs_of(trial: SessionState, rounds: str = "") -> str:
    """The runs that figures are from, in so many rounds (those that were asked for), and how many there are in all."""
    runs, request, made = comparable_runs(trial), trial.request, len(trial.runs)
    if len(runs) == made:
        return f"{rounds or count(request.rounds, 'round')} of {count(request.runs, 'run')} each"
    way, other = ("paired", "interleaved")[:: 1 if trial.is_paired else -1]
    aside = f"{made - len(runs)} {other} {'helped to choose that' if trial.pairing else 'are beside them'}"
    counted = f"{count(len({run.round for run in runs}), 'round')} with {count(len(runs), 'run')} {way}"
    return f"{counted}; {aside}: {count(made, 'run')} in all"


MORE = "Try next: more rounds (--visits), or a quieter host."
STATUS = {RevertOutcome.REGAINS: 0, RevertOutcome.NOTHING: 1, RevertOutcome.NOT_LOST: 1}
UNDECIDED = 2


def part_proofs(state: SessionState) -> Iterator[str]:
    """What the parent with the part of a diff alone shows, and the culprit without it; see ``core/search/parts.py``."""
    started = state.started
    if not started or not started.proofs:
        return
    known = ratios_to_good(state, state.metric, state.hosts, started.host_classes)
    what, good = f"{metric_title(state.metric)}{by_cpu(state.pairing)}", state.commits[0][:10]
    (_, needed), (_, users) = started.proofs
    alone = f"with {count(needed, 'part')} that it needs to build" if needed else "alone"
    others = f" and {count(users, 'part')} that need it to build" * bool(users)
    said = f"Put on {started.good} {alone}", f"{started.bad} without it{others}"
    for (sha, _), how in zip(started.proofs, said, strict=True):
        row = state.facts_of(sha)
        if found := known.get(sha):
            yield f"{how}: {what} is {ratio(found)} of that of {good}."
        elif row.skip:
            yield f"{how}: not measured, as it fails: {printable(row.skip.reason)}."
        else:
            yield f"{how}: not measured; `bisect resume {state.id} --max-time MORE` does that."


def proof_status(trial: SessionState) -> int:
    """0: reverting regains something. 1: it is not shown to, or nothing was lost. 2: undecided."""
    return STATUS.get(revert_outcome(regained_by_revert(trial)), UNDECIDED)


def comparison_sentence(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Iterator[str]:
    """What a comparison of two builds in one workload has shown, in a sentence; in the results of one command, which differ."""
    names = [printable(build.name) for build in trial.request.subjects]
    if trial.request.shared and len(names) == 2:
        yield from results_that_differ(trial, rows)
    if len(rows) != 1 or len(names) != 2:
        return
    if (only := rows[0].ratios[0]) is None:
        yield from unmeasured(trial, "Not compared")
    if not only or not only.interval:  # of one round
        return
    old, new = names
    metric = trial.request.metric
    of = "" if metric in WORDS else f"{metric_title(metric)} of "
    less, more = WORDS.get(metric, LOWER)
    runs = count(min(Counter(run.subject for run in comparable_runs(trial, 0)).values()), "run")
    low, high, by = only.interval.low - 1, only.interval.high - 1, by_cpu(trial.pairing)
    if only.excludes_one:
        nearer, farther = sorted((100 * abs(low), 100 * abs(high)))
        places = 0 if farther - nearer >= 2 else 1 if farther - nearer >= 0.2 else 2
        yield f"{of}{new} is {difference(metric, only.ratio)} ({decimals(nearer, places)}–{decimals(farther, places)} %) than {of}{old}{by}: {runs} each."
    else:
        span = f"{percent(-low)} {less} and {percent(high)} {more}"
        yield f"No difference is shown: {of}{new} is between {span} than {of}{old}{by}, {runs} each."
        yield MORE


def results_that_differ(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Iterator[str]:
    """Which results of one command are worse, and which are better, the largest difference first."""
    metric, real = trial.request.metric, dict[bool, list[tuple[float, str]]]()
    for row in rows:
        if (found := row.ratios[0]) and found.real and found.interval:
            better = (found.ratio > 1) is find_metric(metric).higher_is_better
            said = f"  {row.work}: ×{ratio(found.interval)}, {difference(metric, found.ratio)}"
            real.setdefault(better, []).append((-abs(math.log(found.ratio)), said))
    numbers = f"{len(real.get(False, []))} are worse and {len(real.get(True, []))} better"
    yield f"Of {count(len(rows), 'result')} {numbers}, of which 5 % at most are expected to be none{':' if real else '.'}"
    for better, word in ((False, "Worse"), (True, "Better")):
        if found_ones := real.get(better):
            yield f"{word}:"
            yield from (printable(said) for _, said in sorted(found_ones))


def proof_sentences(trial: SessionState) -> Iterator[str]:
    """What a proof shows, a sentence a line."""
    request, found = trial.request, regained_by_revert(trial)
    good, bad = (printable(request.subjects[build].name) for build in (GOOD, BAD))
    commits, hunt = (request.reverts.commits, request.reverts.hunt) if request.reverts else ((), 0)
    if found is None:
        yield from unmeasured(trial, "Not proven")
        return
    if found.share is None:
        alike = f"{good} and {bad} are not shown to differ in {metric_title(request.metric)}"
        yield f"Nothing can be regained: in these {found.rounds} rounds {alike}."
        yield MORE
        return
    worse = (found.lost > 0) == find_metric(request.metric).higher_is_better
    low, high = found.share.low, found.share.high
    what = f"{share(found.share.middle)} ({share(low)[:-2]} to {share(high)}) of what was {'lost' if worse else 'gained'}{by_cpu(trial.pairing)}"
    names = listed([commit[:10] for commit in commits]) if commits else ""
    yield f"Reverting {names} on {bad} {'regains' if worse else 'takes back'} {what}."
    match revert_outcome(found):
        case RevertOutcome.REGAINS if high < 1:
            yield "That is a part: the rest is due to other changes, or to what depends on the reverted one."
        case RevertOutcome.REGAINS if low > 1:
            yield "That is more than the whole: other changes have the opposite effect, or the revert adds one of its own."
        case RevertOutcome.REGAINS:
            yield "Nothing of it is shown to be due to other changes."
        case RevertOutcome.NOTHING:
            doubt = f"the verdict of hunt {hunt} is in doubt"
            zero = f"The interval includes 0 %: {doubt}, or later commits lose the same again."
            yield zero if high > 0 else f"It makes things worse: {doubt}."
            yield f"Try next: the command of `bisect show {hunt}` that compares it with its parent."
        case _:
            yield "The interval includes nothing and all."
            yield MORE


def unmeasured(trial: SessionState, no: str) -> Iterator[str]:
    """Why nothing is known, which ``no`` says; and what to try."""
    subjects = trial.request.subjects
    failed = [(build.name, build.trouble) for build in subjects if build.trouble]
    failed += [(subjects[skip.subject].name, skip.facts.reason) for skip in trial.skips]
    if failed:
        name, reason = failed[0]
        yield printable(f"{no}: {name} cannot be measured: {reason}.")
        yield "Try next: another revision, or a recipe or a --patch with which this one builds and runs."
    else:
        few = f"it takes two rounds in which all builds have a value of {metric_title(trial.request.metric)}"
        yield printable(f"{no}: {trial.failure or few}.")
        yield MORE if trial.state == "done" else f"Try next: bisect resume {trial.name}"


def pairs_sentence(what: str, noise: float, of_cpu: float | None, turns: float) -> str:
    """How much the ratio of two ``what`` varies, paired and interleaved, and what follows; begins with "ratio"."""
    cpu = f" (that of CPU times by {percent(of_cpu)})" if of_cpu is not None else ""
    said = f"ratio of two {what} varies by {percent(noise)} paired{cpu}, by {percent(turns)} interleaved"
    gains = min(noise, of_cpu or noise) < GAIN * turns
    return f"{said}: {'--pairing auto gains here' if gains else 'nothing is gained by pairs here'}"


def pairing_chosen(ways: PairingComparison, good: str = "good", bad: str = "bad") -> PairingChosen:
    """How builds are compared from here on, with a sentence that says what the ends have shown both ways."""
    if ways.differ_by_waiting:
        seen = f"{bad} has {ratio(ways.paired_ratio)} of {good}, though their CPU time is the same: one of them waits longer"
        return PairingChosen(
            True, printable(f"Builds are compared by time from here on: {seen}."), beside=ways.paired_ratio
        )
    noise = percent(ways.interleaved_noise)
    if ways.is_clear:
        seen = f"they show at once {change(ways.interleaved_ratio.middle)}, where a ratio is taken to vary by {noise}"
        return PairingChosen(False, f"Builds run interleaved: {seen}.")
    if ways.waiting_share:
        seen = f"they wait for {percent(ways.waiting_share)} of their time, and two may wait for each other"
        return PairingChosen(False, f"Builds run interleaved: {seen}.")
    beside = f"{bad} has {ratio(ways.paired_ratio)} of {good}{' by CPU time' * ways.uses_cpu_time}"
    noises = f"the ratio is taken to vary by {percent(ways.paired_noise)} and by {noise}"
    seen = f"{beside} paired and {ratio(ways.interleaved_ratio)} interleaved, {noises}"
    way = "in pairs" if ways.chooses_paired else "interleaved"
    why = f"Builds run {way}: {seen}{', so two disturb each other' * ways.hides_difference}."
    if ways.is_contradictory and not ways.hides_difference:
        why += (
            f" Both contradict each other: what differs between {good} and {bad} may depend on what runs beside them."
        )
    why = printable(why)
    return PairingChosen(
        ways.chooses_paired, why, ways.uses_cpu_time, alone=ways.interleaved_ratio, beside=ways.paired_ratio
    )


def step_sentence(step: "LevelStep", names: Sequence[str]) -> str:
    """A step of a series: where, how large, how sure."""
    where = f"{names[step.before]} → {names[step.after]}"
    if (step.first, step.last) != (step.before, step.after):
        where += f" (95 %: within {names[step.first]} to {names[step.last]})"
    alone = "; one release alone, which may be its code placement" if step.alone else ""
    return f"{where}: ×{ratio(step.size)}, {change(step.size.middle)}{alone}"


def why_unfit(unfit: Unfit) -> str:
    """What is worse on an unfit host, and since when: its level fell by 7.1 %, since 2026-03-01."""
    fell = f"its level fell by {percent(1 - unfit.level)}" if Fault.LEVEL in unfit.faults else ""
    rose = f"its noise rose to {percent(unfit.facts.noise or 0)}" if Fault.NOISE in unfit.faults else ""
    return f"{' and '.join(filter(None, (fell, rose)))}, since {moment(unfit.since)[:10]}"


def unfit_host(name: str, unfit: Unfit) -> str:
    """That a host is unfit, why, and how it is taken back."""
    return f"{name} is unfit: {why_unfit(unfit)}. If it is meant to be so: bisect hosts --accept {shell_word(name)}"
