"""Reasons in sentences: why a build is slower, which statements have another plan, why a hunt goes by the metric that it chose,
why a change is not hunted, and what a comparison and a revert of the culprit show."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfbisect.core.domain.events import PairingChosen
from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric
from perfbisect.core.domain.orders import Interval, NotReproduced, Ways
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import Direction, Policy
from perfbisect.core.domain.trials import counting
from perfbisect.core.explain.classes import PER_INSTRUCTION
from perfbisect.core.explain.evidence import (
    BUSY,
    TIME,
    Cause,
    CounterRow,
    Evidence,
    Explanation,
    PlanRow,
    Sureness,
)
from perfbisect.core.explain.explanation import NO_COUNTERS, NO_OPERATIONS, NO_RUNS
from perfbisect.core.inference.metric_choice import Shown
from perfbisect.core.search.pairing import GAIN
from perfbisect.core.stats.paired_comparison import BAD, GOOD, Compared, RevertOutcome, outcome, regained
from perfbisect.wording import functions
from perfbisect.wording.comparisons import LOWER, WORDS, by_cpu, difference
from perfbisect.wording.quantities import change, count, decimals, percent, ratio, share
from perfbisect.wording.text import listed, metric_title, printable

NOTHING = {
    "": "Nothing that was counted differs enough between the two to say why.",
    NO_RUNS: "There are no runs of both builds to compare.",
}
POINTS = {"storage": "storage", "lock": "contention", "scheduler": "the scheduler"}
HEDGES = {Sureness.SURE: "", Sureness.LIKELY: "Probably: ", Sureness.POSSIBLE: "Possibly: "}
FURTHER = {
    Cause.INSTRUCTIONS: "the number of instructions per operation",
    Cause.MEMORY: "the number of instructions per cycle",
    Cause.WAITING: "waiting",
    Cause.CLOCK: "the clock",
    Cause.LAYOUT: "the placement of code",
    Cause.UNKNOWN: "computing",
}


def sentences(found: Explanation) -> tuple[str, ...]:
    """The classes of an explanation in words, the main one first, and the functions in which the difference is."""
    plans = [sentence(each) for each in found.classes if each.cause is Cause.PLAN]
    main, further = [each for each in found.classes if each.cause is not Cause.PLAN], []
    for each in main[1:]:
        exact = any(row.name == PER_INSTRUCTION for row in each.rows)
        what = "the time of an instruction" if exact else FURTHER[each.cause]
        further.append(what + (f" ({named(each.rows[0])})" if each.rows else ""))
    if main and not (main[0].rows or main[0].detail) and functions.explained_by_change(found):
        main = []  # profiles say why
    also = [f"In part also: {', '.join(further)}."] if further else []
    bloat = "more calls" if functions.by_calls(found) else "code bloat"
    failed = next((each for each in found.missing if each.startswith("instructions: ")), "")
    failed = printable(failed.removeprefix("instructions: ").partition(". ")[0])
    first = [sentence(each, bloat, failed) for each in main[:1]]
    return (*plans, *first, *also, *functions.sentences(found), *nowhere(found))


def nowhere(found: Explanation) -> Iterator[str]:
    """That no function of the diff explains a change of time, and what is excluded as its reason, with the figures."""
    out = [*excluded(found)]
    if not found.change_known or not out or found.plans or functions.explained_by_change(found):
        return
    slower = next((row.ratio.middle for row in found.counters if row.name == TIME), 1.0)
    if rows := functions.may_explain(found, slower):
        which = listed([functions.name(row) for row in rows[: functions.NAMED]])
        yield f"Whether it is in {which} is hidden by the noise of the profiles."
    else:
        moves = found.layouts is None and not any(each.cause is Cause.INSTRUCTIONS for each in found.classes)
        left = f" Not excluded: {FURTHER[Cause.LAYOUT]}, as no other layout was measured." if moves else ""
        yield f"No function of the diff explains it. Excluded: {listed(out)}.{left}"


def excluded(found: Explanation) -> Iterator[str]:
    """What can have caused less than half of a change of the time of an operation."""
    rows = {row.name: row for row in found.counters}
    causes = {each.cause for each in found.classes}
    whole = abs(math.log(rows[TIME].ratio.middle)) if TIME in rows else 0.0
    for cause, name in (Cause.INSTRUCTIONS, "instructions/o"), (Cause.MEMORY, "ipc"), (Cause.WAITING, BUSY):
        row = rows.get(name)
        ends = (row.ratio.low, row.ratio.high) if row and cause not in causes else ()
        if row and ends and all(0 < end < math.inf and abs(math.log(end)) < whole / 2 for end in ends):
            yield f"{FURTHER[cause]} ({row.name} {ratio(row.ratio)})"
    if found.layouts and found.layouts.ratio.excludes_one:
        yield f"{FURTHER[Cause.LAYOUT]} ({ratio(found.layouts.ratio)} in {count(found.layouts.compared, 'layout')})"


def what_helps(found: Explanation, command: str, *, studied: bool) -> str:
    """Why no reason is known, and the ``command`` that measures it; "" where one is."""
    if (
        found.plans
        or found.functions
        or found.counts
        or (found.classes and found.classes[0].cause is not Cause.UNKNOWN)
    ):
        return ""
    causes = [each for each in found.missing if each not in (NO_COUNTERS, NO_OPERATIONS)]
    if studied and not causes:
        return "No function is known to be the reason."
    why = printable(causes[0].rstrip(".")) if studied else "it was not measured"
    return f"No function is known to be the reason ({why}): measure it with `{command}`."


def sentence(evidence: Evidence, bloat: str = "", failed: str = "") -> str:
    """One class, with its numbers and how sure it is; ``bloat`` is what more instructions are called.

    ``failed`` says why a host that may count instructions has counted none.
    """
    if evidence.cause is Cause.PLAN:
        return "A statement is executed in another way: its plan differs between the two."
    if not evidence.rows:
        return NOTHING[evidence.detail]
    row, *more = evidence.rows
    up, size, place = row.ratio.middle > 1, times(row.ratio), evidence.detail
    with_it = f", with {', '.join(map(named, more))}" if more else ""
    match evidence.cause:
        case Cause.INSTRUCTIONS:
            what = f"more instructions per operation ({bloat})" if up else "fewer instructions per operation"
            text = f"It executes {what}: {size}"
        case Cause.MEMORY if row.name == PER_INSTRUCTION:
            slower = " (slower memory, or a slower clock)" if up else ""
            text = f"It takes {'more' if up else 'less'} CPU time for each instruction{slower}: {size}"
        case Cause.MEMORY:
            what = "more instructions per cycle" if up else "fewer instructions per cycle (memory-system bloat)"
            text = f"It executes {what}: {size}{f', by the {place}' if place else ''}{with_it}"
        case Cause.WAITING:
            pointing = f"{with_it}; that points to {POINTS[place]}" if place else ""
            text = f"An operation waits {'longer' if up else 'less'}: {size} the time for its CPU time{pointing}"
        case Cause.CLOCK:
            text = f"The clock of the processor ran {'faster' if up else 'slower'}: {size}; that is not the commit"
        case Cause.LAYOUT:
            same = "the same instructions are executed in other time"
            text = f"The placement of its code may be the only difference: {same} ({row.name} {size}){with_it}"
        case _:
            why = f"its instructions were not counted ({failed})" if failed else "this host has no instruction counts"
            unknown = f"{why}, so more code and slower memory cannot be separated"
            text = (
                f"CPU time per operation is {size}, so most of it goes into computing and not into waiting; {unknown}"
            )
    counted = min(each.share for each in evidence.rows)
    partly = f" (counted {counted:.0%} of the time, and extrapolated)" if counted < 1 else ""
    return f"{HEDGES[evidence.sure]}{text}{partly}."


def named(row: CounterRow) -> str:
    """A ratio with its name."""
    return f"{row.name} {times(row.ratio)}"


def times(ratio: Interval) -> str:
    """A ratio as people say it, with its interval where it has one; one near 1 has two digits of its change.

    >>> times(Interval(1.38, 1.42, 1.47))
    '×1.42 (1.38 to 1.47)'
    >>> times(Interval(0.0, 1.00213, math.inf))
    '×1.0021'
    """
    change = abs(ratio.middle - 1)
    places = 2 if change == 0 else min(6, max(2, 1 - math.floor(math.log10(change))))
    low, middle, high = (f"{each:.{places}f}" for each in (ratio.low, ratio.middle, ratio.high))
    known = ratio.low > 0 and ratio.high < math.inf and ratio.high - ratio.low > change / 50
    return f"×{middle} ({low} to {high})" if known else f"×{middle}"


def _step(text: str) -> str:
    """A line of a plan, as far indented as it was: that says which step belongs to which."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable(text)


VALUE = re.compile(r"'(?!\{)(?:[^']|'')*'|(?<![\w.])(?:-?\d[\d.]*|\(?\$\d+\)?)(?:::\w+)?(?!\w)")  # not a quoted array
LISTED = 3  # values of a list that are shown
LONG = 8  # values of a list that is shortened


def plans_sentence(rows: Sequence[PlanRow], commit: str) -> str:
    """What is said before any other reason."""
    has = "has" if len(rows) == 1 else "have"
    return f"Since {commit}, {count(len(rows), 'statement')} of the workload {has} another plan."


def plan_lines(rows: Sequence[PlanRow]) -> Iterator[str]:
    """Each statement, the plan before the commit, and the plan since."""
    for place, row in enumerate(rows):
        if place:
            yield ""
        yield from map(_step, row.statement.splitlines())
        for title, plan in (("before", row.parent), ("since", row.culprit)):
            for number, line in enumerate(abridged(plan).splitlines()):
                yield f"  {'' if number else title:8}{_step(line)}"


def abridged(plan: str) -> str:
    """A plan in which long lists of values have only their first ones, and how many more there are."""
    return "\n".join(map(_abridged_line, plan.splitlines()))


def _abridged_line(line: str) -> str:
    values = list(VALUE.finditer(line))
    starts = [0, *(place for place, (left, right) in enumerate(pairwise(values), 1) if not _listed(line, left, right))]
    kept, shown = [], 0
    for first, following in pairwise([*starts, len(values)]):
        if following - first >= LONG:
            kept.append(line[shown : values[first + LISTED - 1].end()])
            kept.append(f", … {following - first - LISTED} more")
            shown = values[following - 1].end()
    return "".join((*kept, line[shown:]))


def _listed(line: str, left: re.Match[str], right: re.Match[str]) -> bool:
    """Whether there is only a comma between two values."""
    return line[left.end() : right.start()].strip() == ","


def changed_over(shown: Shown, usual: str, time: Interval) -> str:
    """That a hunt goes on by instructions."""
    seen = f"{metric_title(usual)}, of which bad has {ratio(time)} of good, is not enough to find it"
    return f"The metric is {INSTRUCTIONS} from here on, which shows {shown_by(shown)}; {seen}."


def shown_by(one: Shown) -> str:
    """The change, and the noise that it is seen in."""
    noise = "less than 0.01 %" if one.noise < 0.0001 else percent(one.noise)
    return f"{change(one.ratio)}, where runs are taken to vary by {noise}"


def not_taken(shown: Shown, usual: str, policy: Policy) -> tuple[str, str]:
    """Why a rise of the instructions is not hunted, and how it is."""
    small = not shown.large(policy)
    seen = "that is no change of interest" if small else f"{metric_title(usual)} may show another change than this one"
    option = f" {smaller_option(shown.ratio)}" * small
    return f"{INSTRUCTIONS} shows {shown_by(shown)}: {seen}", f"To hunt it: --metric {INSTRUCTIONS}{option}"


TOO_SMALL = 1.5e-4  # log ratio below which the search takes no change for one


def why_not_hunted(verdict: NotReproduced) -> tuple[str, str]:
    """Why a difference between the ends that is shown is not hunted; and what to try, "" where nothing hunts it."""
    seen, wanted = abs(math.log(verdict.ratio.middle)), verdict.direction
    way = Direction.DROP if verdict.ratio.middle < 1 else Direction.RISE
    small, other = seen < -math.log1p(-verdict.least), wanted not in (way, Direction.ANY)
    options = " ".join([*([f"--direction {way}"] * other), *([smaller_option(verdict.ratio.middle)] * small)])
    least = f"that is less than the smallest change of interest, {percent(verdict.least)} (--min-effect)"
    if small and seen < TOO_SMALL:
        return f"{least}, and too small to be hunted", ""
    if other:
        swapped = "the older revision first, if good and bad were swapped"
        return f"a {wanted} is hunted, and excluded", f"{swapped}; or {options}, which hunts this {way}"
    if small:
        return least, f"{options}, which hunts it"
    more = "longer runs (--time), or another variant, which changes the code layout"
    return "that is no more than noise or code layout can cause", more


def smaller_option(ratio: float) -> str:
    """The option with which a change by that factor is large enough to be hunted: three quarters of it, in one digit."""
    return f"--min-effect {float(f'{70 * -math.expm1(-abs(math.log(ratio))):.1g}'):g}%"


MORE = "Try next: more rounds (--visits), or a quieter host."
STATUS = {
    RevertOutcome.REGAINS: 0,
    RevertOutcome.NOTHING: 1,
    RevertOutcome.NOT_LOST: 1,
    RevertOutcome.UNCLEAR: 2,
    RevertOutcome.UNMEASURED: 2,
}


def proof_status(trial: SessionState) -> int:
    """0: reverting regains something. 1: it is not shown to, or nothing was lost. 2: undecided."""
    return STATUS[outcome(regained(trial))]


def comparison_sentence(trial: SessionState, rows: Sequence[Compared]) -> Iterator[str]:
    """What a comparison of two builds in one workload has shown, in a sentence."""
    names = [printable(build.name) for build in trial.request.subjects]
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
    runs = count(min(Counter(run.subject for run in counting(trial, 0)).values()), "run")
    low, high, by = only.interval.low - 1, only.interval.high - 1, by_cpu(trial.pairing)
    if only.certain:
        nearer, farther = sorted((100 * abs(low), 100 * abs(high)))
        places = 0 if farther - nearer >= 2 else 1 if farther - nearer >= 0.2 else 2
        yield f"{of}{new} is {difference(metric, only.ratio)} ({decimals(nearer, places)}–{decimals(farther, places)} %) than {of}{old}{by}: {runs} each."
    else:
        span = f"{percent(-low)} {less} and {percent(high)} {more}"
        yield f"No difference is shown: {of}{new} is between {span} than {of}{old}{by}, {runs} each."
        yield MORE


def proof_sentences(trial: SessionState) -> Iterator[str]:
    """What a proof shows, a sentence a line."""
    request, found = trial.request, regained(trial)
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
    worse, low, high = (
        (found.lost > 0) == find_metric(request.metric).higher_is_better,
        found.share.low,
        found.share.high,
    )
    what = f"{share(found.share.middle)} ({share(low)[:-2]} to {share(high)}) of what was {'lost' if worse else 'gained'}{by_cpu(trial.pairing)}"
    names = listed([commit[:10] for commit in commits]) if commits else ""
    yield f"Reverting {names} on {bad} {'regains' if worse else 'takes back'} {what}."
    match outcome(found):
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
    failed = [(build.name, build.trouble) for build in subjects]
    failed += [(subjects[skip.subject].name, skip.facts.reason) for skip in trial.skips]
    if known := next(((name, reason) for name, reason in failed if reason), None):
        yield printable(f"{no}: {known[0]} cannot be measured: {known[1]}.")
        yield "Try next: another revision, or a recipe or a --patch with which this one builds and runs."
    else:
        few = f"it takes two rounds in which all builds have a value of {metric_title(trial.request.metric)}"
        yield printable(f"{no}: {trial.failure or few}.")
        yield MORE if trial.state == "done" else f"Try next: bisect resume {trial.name}"


def pairs_sentence(what: str, noise: float, of_cpu: float | None, turns: float) -> str:
    """How much the ratio of two ``what`` varies at the same time and in turns, and what follows; begins with "ratio"."""
    cpu = f" (that of CPU times by {percent(of_cpu)})" if of_cpu is not None else ""
    said = f"ratio of two {what} varies by {percent(noise)} at the same time{cpu}, by {percent(turns)} in turns"
    gains = min(noise, of_cpu or noise) < GAIN * turns
    return f"{said}: {'--pairing auto gains here' if gains else 'nothing is gained by pairs here'}"


def pairing_chosen(ways: Ways, good: str = "good", bad: str = "bad") -> PairingChosen:
    """How builds are compared from here on, with a sentence that says what the ends have shown both ways."""
    if ways.waits:
        seen = f"{bad} has {ratio(ways.beside)} of {good}, though their CPU time is the same: one of them waits longer"
        return PairingChosen(True, printable(f"Builds are compared by time from here on: {seen}."), beside=ways.beside)
    noise = percent(ways.in_turns)
    if ways.clear:
        seen = f"they show at once {change(ways.alone.middle)}, where a ratio is taken to vary by {noise}"
        return PairingChosen(False, f"Builds are measured in turns: {seen}.")
    if ways.waiting:
        seen = f"they wait for {percent(ways.waiting)} of their time, and two may wait for each other"
        return PairingChosen(False, f"Builds are measured in turns: {seen}.")
    beside = f"{bad} has {ratio(ways.beside)} of {good}{' by CPU time' * ways.by_cpu}"
    noises = f"the ratio is taken to vary by {percent(ways.in_rounds)} and by {noise}"
    seen = f"{beside} at the same time and {ratio(ways.alone)} in turns, {noises}"
    way = "two at the same time" if ways.together else "in turns"
    why = printable(f"Builds are measured {way}: {seen}{', so two disturb each other' * ways.lost}.")
    return PairingChosen(ways.together, why, ways.by_cpu, alone=ways.alone, beside=ways.beside)
