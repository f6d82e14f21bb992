"""The report of an A/A: how a build varies on a host, and what size of change that allows to detect."""

from collections.abc import Iterator
from statistics import median

import msgspec

from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.noise import Noise, advice, layout_effect, of_layouts, rows, sentences
from perfbisect.wording.quantities import MISSING, count, duration, percent
from perfbisect.wording.table import table


def as_object(trial: Trial, found: Noise | None) -> str:
    """The report as JSON; ``found`` is None where there are too few runs."""
    report = {
        "id": trial.name,
        "state": trial.state,
        "failure": trial.failure,
        "settings": msgspec.to_builtins(trial.request),
        "host": trial.host,
        "noise": found,
        "advice": advice(trial, found) if found else None,
        "detectable": list(rows(trial, found)) if found else [],
        "layouts": layout_effect(trial),
        "skips": trial.skips,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def lines(trial: Trial, found: Noise) -> Iterator[str]:
    """The report as text."""
    request, [work], subject = trial.request, trial.request.works, trial.request.subjects[0]
    wild = f", {count(found.wild, 'outlier')} left out" if found.wild else ""
    groups = "visit" if found.shared else "round"
    seconds = median(run.facts.seconds for run in trial.runs if not run.facts.layout)  # of a command: not known before
    yield (
        f"{request.builder} {work.name} on {request.host}, {subject.name}: "
        f"{count(found.visits, groups)}, {count(found.runs, 'run')} of {seconds:.3g} s{wild}"
    )
    yield ""
    drift = "   drift of the host; a hunt's alternating runs cancel most of it"
    between = "not known from one visit, or from one run in each" if found.between is None else percent(found.between)
    yield f"  between {groups}s  {between}{'' if found.shared or found.between is None else drift}"
    yield f"  within {groups}s   {MISSING if found.within is None else percent(found.within)}"
    yield f"  of one run      {percent(found.run)}   ({percent(found.low)} to {percent(found.high)})"
    yield ""
    yield "Smallest detectable drop (95 % sure, in 4 cases of 5)"
    head = ("runs per side", "visits", "time", "drop")
    body = [(str(row.runs), str(row.visits), duration(row.seconds), percent(row.drop)) for row in rows(trial, found)]
    yield from (f"  {line}" for line in table(head, body, right=head))
    yield ""
    yield from sentences(trial, found)
    yield from of_placement(trial, found)


def of_placement(trial: Trial, found: Noise) -> Iterator[str]:
    """What placement of the code does, in an A/A of layouts."""
    if not of_layouts(trial):
        return
    yield ""
    effect, subjects, measured = layout_effect(trial), trial.request.subjects, max(0, len(trial.pairs()) - 1)
    yield from (f"{subjects[skip.subject].name} is left out: {skip.facts.reason}" for skip in trial.skips)
    size = f"{measured} of {count(len(subjects) - 1, 'layout')}" if trial.skips else count(measured, "layout")
    if effect is None:
        why = "it takes two" if measured < 2 else "too few complete rounds to compare them: make more with --visits"
        yield f"Code placement: {size} measured; {why}."
        return
    between = f"{percent(effect.sd)}   ({percent(effect.low)} to {percent(effect.high)})"
    yield f"Code placement: {size}, each visited {effect.rounds} times"
    yield f"  between layouts {between}   of one run {percent(found.run)}"
    yield f"  lowest          ×{effect.lowest:.3f}   highest ×{effect.highest:.3f} of their mean"
    yield f"  as linked       ×{effect.usual:.3f}"
