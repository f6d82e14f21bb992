"""The document of an A/A: how a build varies on a host, and what size of change that allows to detect."""

import math
from collections.abc import Iterator
from statistics import median

from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import counting, pairs_made
from perfbisect.core.search.pairing import GAIN
from perfbisect.core.stats.noise import noise_of_trial, of_pairs, smallest_in_pairs
from perfbisect.core.stats.noise import rows as detectable
from perfbisect.core.stats.noise import sentences as advice
from perfbisect.report.document import Facts, Prose, Section, Table, row
from perfbisect.wording.quantities import MISSING, count, duration, percent
from perfbisect.wording.trials import pairs_sentence, unmeasured


def summary(trial: SessionState) -> tuple[str, ...]:
    """What was measured against itself."""
    request, subject = trial.request, trial.request.subjects[0]
    found = noise_of_trial(trial)
    if found is None:
        return tuple(unmeasured(trial, "Not known"))
    wild = f", {count(found.wild, 'outlier')} left out" if found.wild else ""
    groups = count(found.visits, "visit" if found.shared else "round")
    # Those of a command are not known before.
    seconds = median(run.facts.seconds for run in counting(trial) if not run.facts.layout)
    what = f"{request.builder} {request.works[0].name} on {request.host}, {subject.name}"
    pairs = f"; and {count(2 * pairs_made(trial), 'run')} at the same time" * bool(pairs_made(trial))
    return (f"{what}: {groups}, {count(found.runs, 'run')} of {seconds:.3g} s{wild}{pairs}",)


def sections(trial: SessionState) -> Iterator[Section]:
    """How a build varies on a host, and what size of change that allows to detect."""
    found = noise_of_trial(trial)
    if found is None:
        return
    groups = "visits" if found.shared else "rounds"
    drift = "" if found.shared else "; drift of the host, of which a hunt's alternating runs cancel most"
    unknown = "not known from one visit, or from one run in each"
    varies = (
        (f"between {groups}", unknown if found.between is None else percent(found.between) + drift),
        (f"within {groups}", MISSING if found.within is None else percent(found.within)),
        ("of one run", f"{percent(found.run)} ({percent(found.low)} to {percent(found.high)})"),
    )
    yield Section("How runs vary", (Facts(varies),), "noise", quiet=True)
    turns, gains = math.sqrt(2) * found.run, False
    if pairs := of_pairs(trial):
        beside = min(filter(None, pairs), default=0.0)
        gains, by_cpu = beside < GAIN * turns, " by CPU time" * (beside == pairs[1])
        said = f"The {pairs_sentence('runs', *pairs, turns)}."
        yield Section("At the same time", (Prose((said,)),), "pairs", quiet=True)
    head = ("runs per side", "visits", "time", *(("drop in turns", f"in pairs{by_cpu}") if gains else ("drop",)))
    rows = (
        row(
            str(each.runs), str(each.visits), duration(each.seconds), percent(each.drop),
            *([percent(smallest_in_pairs(beside, pairs_made(trial), each.runs))] if gains else []),
        )
        for each in detectable(trial, found)
    )  # fmt: skip
    title = "Smallest detectable drop (95 % sure, in 4 cases of 5)"
    yield Section(title, (Table(head, tuple(rows), head),), "detectable")
    yield Section("What would help", (Prose(tuple(advice(trial, found))),), quiet=True)
