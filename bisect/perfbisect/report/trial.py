"""The document of a trial: a comparison, a proof, an A/A, or a series of releases.

Tables are in the form of the field: a column for each build but the first, a row for each workload; numbers first, and the
name of the row behind them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from perfbisect.core.domain import trials
from perfbisect.core.domain.facts import pairs_of
from perfbisect.core.domain.metrics import BUSY, find_metric, values_of
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import GAIN, TrialType
from perfbisect.core.domain.trials import counting, pairs_made, service_levels
from perfbisect.core.stats import noise
from perfbisect.core.stats.paired_comparison import (
    COLUMNS,
    Compared,
    Ratio,
    Values,
    by_machine,
    compared,
    grade,
    spent_per_operation,
    summaries,
    without_metric,
)
from perfbisect.core.stats.release_series import lines_of
from perfbisect.report import series
from perfbisect.report.command_line import command_on
from perfbisect.report.document import (
    Cell,
    Code,
    Document,
    Facts,
    Notes,
    Prose,
    Row,
    Section,
    Table,
    host_line,
    missing,
    row,
    sections,
    tools,
)
from perfbisect.wording.quantities import MISSING, between, count, decimals, duration, figure, percent, workloads
from perfbisect.wording.text import metric_title, titled
from perfbisect.wording.trials import (
    comparison_sentence,
    pairs_sentence,
    proof_sentences,
    relative_metric,
    runs_of,
    unmeasured,
)

ABSOLUTE, RELATIVE = "--- absolute", "--- relative to first result"
SIDES = ("parent", "culprit", "third")  # classes of the colours of builds; all after the third share its own
TONES = {"worse": "bad", "better": "good", "": "unclear"}


def document(
    trial: SessionState, *, detailed: bool = True, page: bool = False, history: Path | None = None
) -> Document:
    """The report of a trial; ``detailed`` with costs per operation, and for a ``page`` with what is drawn."""
    request = trial.request
    names = [build.name for build in request.subjects]
    of = names if len(names) <= 4 else [names[0], "…", names[-1]]
    works = workloads([work.name for work in request.works])
    body: Iterable[Section]
    if request.kind is TrialType.NOISE:
        summary, body, headline = noise_summary(trial), noise_sections(trial), ""
    else:
        rows = [] if request.series else compared(trial, request.metric)
        parts = series.sections(trial) if request.series else comparison(trial, rows, page=page)
        spent = Section("Per operation", tuple(per_operation(trial, rows)), "operations", quiet=True, folded=True)
        said = Section("Remarks", (Notes(tuple((text, "") for text in remarks(trial))),), "remarks", quiet=True)
        body = (*parts, *((spent,) if detailed else ()), said)
        summary = tuple(proof_sentences(trial) if request.kind is TrialType.PROVE else comparison_sentence(trial, rows))
        headline = "" if summary else headline_of(trial, rows, names)
    return Document(
        session=f"{request.kind.noun[0].upper()}{request.kind.noun[1:]} {trial.name}",
        what=f"{request.builder} {works}: {', '.join(of)}",
        started=trial.began,
        state=": ".join(filter(None, (trial.state, trial.failure))),
        facts=Facts(tuple(facts(trial))),
        summary=summary,
        headline=headline,
        sections=sections(*body, *(drawn(trial, history) if page else ())),
    )


def facts(trial: SessionState) -> Iterator[tuple[str, str]]:
    """How it was measured, and where."""
    request = trial.request
    changed = "".join(f", {name} {value}" for name, value in request.overrides.items())
    texts = {
        "builder": ", ".join(filter(None, (request.builder, request.variant))),
        "measured": f"{metric_title(request.metric)}{changed}; {runs_of(trial)}",
        "pairing": trial.pairing.why if trial.pairing else "",
        "origin": f"imported from {trial.origin}" if trial.origin else "",
        "host": host_line(trial.host),
    }
    yield from ((name, text) for name, text in texts.items() if text)


def headline_of(trial: SessionState, rows: Sequence[Compared], names: Sequence[str]) -> str:
    """The answer in a line: how many differences are real, in which way; or how many steps a series has."""
    request, works = trial.request, count(len(trial.request.works), "workload")
    if request.series:
        steps = sum(len(line.steps) for line in lines_of(trial))
        return f"{names[0]} to {names[-1]} of {request.builder}: {count(steps, 'step')} in {works}"
    tones = [grade(ratio, request.metric) for row in rows for ratio in row.ratios if ratio]
    found = " and ".join(f"{word} in {tones.count(word)}" for word in ("worse", "better") if word in tones)
    each = works if len(names) == 2 else count(len(tones), "ratio")
    said = f"{found} of" if found else "no real difference in"
    return f"{', '.join(names[1:])} against {names[0]}: {said} {each}"


def comparison(trial: SessionState, rows: Sequence[Compared], *, page: bool) -> Iterator[Section]:
    """Ratios, their intervals, groups, service levels."""
    if page:
        title = f"Relative to {trial.request.subjects[0].name}"
        yield Section(title, (Prose(legend(trial)), plotted(trial, rows)), "ratios")
        yield from series.installed(trial)
    else:
        yield Section("Relative table", (Prose(legend(trial)), ratios(trial, rows)), "table", quiet=True)
        yield Section("Intervals", (intervals(trial, rows),), quiet=True)
    titles = columns(trial)
    groups = [
        Row((
            *map(two, (each.least, each.most, each.average, each.median)),
            Cell(f"{each.group}, {titles[each.subject - 1]}" if len(titles) > 1 else each.group),
        ))
        for each in summaries(rows)
    ]  # fmt: skip
    if groups:
        yield Section("Groups", (numbers(("min", "max", "avg", "median"), "group", groups),), quiet=True)
    if levels := service_table(trial):
        yield Section("Service levels", (levels,), quiet=True)


def columns(trial: SessionState) -> tuple[str, ...]:
    """col-1, col-2 …: a column for each build but the baseline."""
    return tuple(f"col-{number}" for number in range(1, len(trial.request.subjects)))


def numbers(
    head: Sequence[str],
    named: str,
    rows: Sequence[Row],
    above: tuple[str, ...] = (),
    name: str = "",
    plain: tuple[str, ...] = (),
) -> Table:
    """A table in the form of the field; the last cell of a row is what is ``named``."""
    return Table(
        (*head, named), tuple(rows), head, above, name, field=True, plain_head=(*plain, named) if plain else ()
    )


def legend(trial: SessionState) -> tuple[str, ...]:
    """Which build each column is, with its version and path, and what they are relative to."""
    builds = []
    for build in trial.request.subjects:
        version = f" ({build.version})" if build.version and build.version not in build.name else ""
        config = f"+{build.config}" if build.config else ""
        builds.append(f"{build.name}{version}" + (f" = {build.path}{config}" if build.path else ""))
    further = zip(columns(trial), builds[1:], strict=True)
    return (f"{relative_metric(trial)} relative to: {builds[0]}", *(f"{column} : {name}" for column, name in further))


def ratios(trial: SessionState, rows: Sequence[Compared]) -> Table:
    """The relative table, with the culprits of drops that were hunted; for programs these are columns of their own."""
    works = trial.request.works
    hunts = {(works[each.work].name, each.last): each for each in sorted(trial.hunts, key=lambda each: each.hunt)}

    def cell(work: str, build: int, ratio: Ratio) -> Cell:
        hunt, note = hunts.get((work, build)), ""  # the latest that ends at this build
        culprit = (hunt.culprit or hunt.state if hunt else "",) if hunts else ()
        if hunt:
            state = f"hunt {hunt.hunt}" if hunt.state in ("running", "interrupted") else hunt.state
            note = hunt.culprit[:10] or state
        shown = f"{ratio.ratio:.2f}", *culprit
        return Cell(decimals(ratio.ratio, 2), shown, grade(ratio, trial.request.metric), note)

    head = columns(trial)
    plain = tuple(text for column in head for text in (column, f"{column} culprit")) if hunts else ()
    return numbers(head, "workload", [*by_group(rows, cell, 2 if hunts else 1)], name="relative", plain=plain)


def intervals(trial: SessionState, rows: Sequence[Compared]) -> Table:
    """The intervals of all ratios; for programs, which of them are coloured, too."""
    found = sorted({ratio.rounds for row in rows for ratio in row.ratios if ratio}) or [0]
    rounds = f"{found[0]} to {count(found[-1], 'round')}" if len(found) > 1 else count(found[0], "round")

    def cell(_work: str, _build: int, ratio: Ratio) -> Cell:
        ends = (f"{ratio.interval.low:.4f}", f"{ratio.interval.high:.4f}") if ratio.interval else ("", "")
        return Cell(between(ratio.interval), (*ends, grade(ratio, trial.request.metric)))

    title = f"95 % intervals, from {runs_of(trial, rounds)}"
    head = columns(trial)
    plain = tuple(f"{column} {part}" for column in head for part in ("low", "high", "real"))
    return numbers(head, "workload", [*by_group(rows, cell, 3)], (title,), plain=plain)


def by_group(rows: Sequence[Compared], cell: Callable[[str, int, Ratio], Cell], wide: int) -> Iterator[Row]:
    """A row for each workload, with an empty one where another group begins, unless each is a group by itself.

    ``cell`` is given the workload, the number of the build and its ratio.
    """
    several = len({row.group for row in rows}) < len(rows)
    for number, each in enumerate(rows):
        if number and several and each.group != rows[number - 1].group:
            yield Row(())
        cells = (
            cell(each.work, build, ratio) if ratio else missing(wide) for build, ratio in enumerate(each.ratios, 1)
        )
        yield Row((*cells, Cell(each.work)))


def plotted(trial: SessionState, rows: Sequence[Compared]) -> Table:
    """A row for each workload and build, with its interval drawn."""
    found = []
    for each in rows:
        for subject, ratio in zip(trial.request.subjects[1:], each.ratios, strict=True):
            interval = ratio.interval if ratio else None
            shown, rounds = (decimals(ratio.ratio, 3), ratio.rounds) if ratio else (MISSING, 0)
            cells = row(each.work, subject.name, shown, between(interval), str(rounds)).cells
            found.append(Row(cells, interval, TONES[grade(ratio, trial.request.metric)] if ratio else "unclear"))
    above = (f"{metric_title(trial.request.metric)} with 95 % intervals from paired rounds.",)
    head = ("workload", "build", "ratio", "95 %", "rounds")
    return Table(head, tuple(found), head[2:], above, "ratios", "ratio to the first build", ("95 %", "rounds"))


def two(value: float) -> Cell:
    """A ratio."""
    return Cell(decimals(value, 2), (f"{value:.2f}",))


def exact(value: float) -> Cell:
    """An absolute number."""
    return Cell(figure(value), (f"{value:.6g}",))


def per_operation(trial: SessionState, rows: Sequence[Compared]) -> Iterator[Table]:
    """For each workload what an operation costs, and its counters: absolute, and relative to the first build."""
    builds = [each.name for each in trial.request.subjects]
    unit = "cpu/o in % of the machine per o/s" if by_machine(trial) else "cpu/o in µs"

    # Of commands, whose operation is a whole run, the metric says it.
    names = COLUMNS[:-1] if all(run.facts.operations == 1 for run in trial.runs) else (*COLUMNS, "qps")
    together = "paired runs, not by pairs" if trial.together else "interleaved runs"
    way = f", medians of {together}" * bool(trial.pairing)

    def of(values: Sequence[Values], of_rows: Sequence[str], cell: Callable[[float], Cell], *above: str) -> Table:
        known = [(name, of) for name, of in zip(names, zip(*values, strict=True), strict=False) if set(of) - {None}]
        cells = ([missing() if one is None else cell(one) for one in of] for _, of in known)
        rows = [Row((*each, Cell(name))) for *each, name in zip(*cells, of_rows, strict=True)]
        return numbers([name for name, _ in known], "build", rows, above)

    for found in spent_per_operation(trial):
        if any(set(each[: len(names)]) - {None} for each in found.absolute):
            yield of(found.absolute, builds, exact, f"{found.work}, {unit}{way}", ABSOLUTE)
            if builds[1:]:
                yield of(found.relative, builds[1:], two, RELATIVE)
    for each in rows if not trial.request.shared else ():  # those of one command are the same
        shown = {name: of for name, of in each.counters.items() if name != "qps" or name in names}
        if shown.keys() - {"qps", *COLUMNS}:  # what the tables of costs do not have
            each = replace(each, counters=shown)
            yield counters(trial, each, f"relative to {builds[0]}{way}", lambda _, other: two(other))
            yield counters(trial, each, f"absolute{way}", lambda base, other: exact(base * other))


def counters(trial: SessionState, found: Compared, what: str, cell: Callable[[float, float], Cell]) -> Table:
    """The counters of a workload per operation: of the baseline, and of the others by their ratios to it."""
    rows = [
        Row((exact(base), *(missing() if other is None else cell(base, other) for other in others), Cell(name)))
        for name, (base, *others) in found.counters.items()
        if base is not None
    ]
    return numbers(("baseline", *columns(trial)), "per operation", rows, (f"{found.work}, {what}",))


def service_table(trial: SessionState) -> Table | None:
    """The rate that each build sustained, coloured where it fails; None where no workload has a background."""

    def cell(rate: float, sustained: bool = True) -> Cell:
        return Cell(figure(rate), (f"{rate:.6g}", "" if sustained else "fails"), "" if sustained else "worse")

    rows = [
        Row((cell(rate), *(cell(one.held, one.sustained) if one else missing(2) for one in held), Cell(work)))
        for work, held, _ in service_levels(trial)
        if (rate := next((build.wanted for build in held if build), None)) is not None
    ]
    head = ("wanted", "baseline", *columns(trial))
    plain = tuple(f"{column}{part}" for column in head for part in ("", " SLA"))
    return numbers(head, "workload", rows, ("Background rows per second",), plain=plain) if rows else None


def remarks(trial: SessionState) -> Iterator[str]:
    """What hunts have found, what is missing from the table, and why; and which builds are the same binary."""
    subjects, works = trial.request.subjects, trial.request.works
    for each in trial.hunts:
        found = f"{each.culprit[:10]} {each.subject}".strip() or each.state
        ends = f"{subjects[each.first].name} to {subjects[each.last].name}"
        yield f"{works[each.work].name}, {ends}: {found} (hunt {each.hunt})"
    yield from (f"{each.name} was not measured: {each.trouble}" for each in subjects if each.trouble)
    for skip in trial.skips:
        yield f"{subjects[skip.subject].name} fails in {works[skip.work].name}: {skip.facts.reason}"
    for work, held, clients in service_levels(trial):
        for subject, build, client in zip(subjects, held, clients, strict=True):
            if build and not build.sustained:
                rates = f"{figure(build.held)} of {figure(build.wanted)} rows per second"
                yield f"{subject.name} fails the SLA of {work}: it sustains {rates} ({build.role})."
            if client is not None and client >= BUSY:
                yield f"In {work} of {subject.name} the client is busy for {percent(client)} of the time, and may limit it."
    for place, subject_ in without_metric(trial):
        yield f"{subjects[subject_].name} has no value of {trial.request.metric} in {works[place].name}."
    alike: dict[tuple[str, str], list[str]] = {}
    for subject in filter(lambda each: each.binary, subjects):
        alike.setdefault((subject.binary, subject.config_hash), []).append(subject.name)
    yield from (f"{' and '.join(names)} are the same binary." for names in alike.values() if len(names) > 1)


def drawn(trial: SessionState, history: Path | None) -> Iterator[Section]:
    """What a page has beside: the runs of each workload in order of time, the builds, the host, the command."""
    from perfbisect.report.page.charts import by_second, of_pairs, of_runs

    request = trial.request
    names = [each.name for each in request.subjects]
    compared_by = trial.pairing.compared(request.metric) if trial.pairing else request.metric
    colours = [*zip(SIDES, names, strict=False), *[("muted", "and further builds")] * (len(names) > len(SIDES))]
    for number, work in enumerate(request.works):
        made = trials.runs_of(trial, number)
        sides = [(SIDES[min(run.subject, 2)], [replace(run.facts, round=str(run.round))]) for run in made]
        if runs := by_second(sides, find_metric(request.metric).read):
            yield Section(f"{work.name} in order of time", (of_runs(runs, titled(request.metric), colours),))
        for place, name in enumerate(names[1:], 1):
            both = (run.facts for run in made if run.subject in (0, place))
            if pairs := values_of(pairs_of(both), compared_by):
                drawing = of_pairs(pairs, titled(compared_by), [*zip(SIDES, (names[0], name), strict=False)])
                yield Section(f"{work.name}, paired runs", (drawing,))
    builds = ((each.name, ", ".join(filter(None, (each.commit, each.version, each.path)))) for each in request.subjects)
    yield Section("Builds", (Facts(tuple(builds)),), "builds")
    yield Section("Tools and settings", tools([trial.host]), "conditions")
    yield Section("As text", (Code((command_on("show", trial.name, history),), "The same in a terminal"),), "repeat")


def noise_summary(trial: SessionState) -> tuple[str, ...]:
    """What was measured against itself."""
    request, subject = trial.request, trial.request.subjects[0]
    found = noise.noise_of_trial(trial)
    if found is None:
        return tuple(unmeasured(trial, "Not known"))
    wild = f", {count(found.wild, 'outlier')} left out" if found.wild else ""
    groups = count(found.visits, "visit" if found.shared else "round")
    # Those of a command are not known before.
    seconds = median(run.facts.seconds for run in counting(trial) if not run.facts.layout)
    what = f"{request.builder} {request.works[0].name} on {request.host}, {subject.name}"
    pairs = f"; and {count(2 * pairs_made(trial), 'paired run')}" * bool(pairs_made(trial))
    return (f"{what}: {groups}, {count(found.runs, 'run')} of {seconds:.3g} s{wild}{pairs}",)


def noise_sections(trial: SessionState) -> Iterator[Section]:
    """How a build varies on a host, and what size of change that allows to detect."""
    found = noise.noise_of_trial(trial)
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
    if pairs := noise.noise_of_pairs(trial):
        beside = min(filter(None, pairs), default=0.0)
        gains, by_cpu = beside < GAIN * turns, " by CPU time" * (beside == pairs[1])
        said = f"The {pairs_sentence('runs', *pairs, turns)}."
        yield Section("Paired runs", (Prose((said,)),), "pairs", quiet=True)
    head = ("runs per side", "visits", "time", *(("drop interleaved", f"paired{by_cpu}") if gains else ("drop",)))
    rows = (
        row(
            str(each.runs), str(each.visits), duration(each.seconds), percent(each.drop),
            *([percent(noise.smallest_drop_in_pairs(beside, pairs_made(trial), each.runs))] if gains else []),
        )
        for each in noise.detectable_drops(trial, found)
    )  # fmt: skip
    title = "Smallest detectable drop (95 % sure, in 4 cases of 5)"
    yield Section(title, (Table(head, tuple(rows), head),), "detectable")
    yield Section("What would help", (Prose(tuple(noise.advice_sentences(trial, found))),), quiet=True)
