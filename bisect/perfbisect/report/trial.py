"""The report of a trial: a comparison, a proof, an A/A test, or a series of releases.

Tables have a column for each build except the first, and a row for each workload; the name of the workload is the last
cell of a row.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from perfbisect.core.domain import trials
from perfbisect.core.domain.facts import pair_runs
from perfbisect.core.domain.metrics import BUSY, find_metric, second_and_first_values
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import GAIN, TrialType
from perfbisect.core.domain.trials import background_rates, paired_or_interleaved_runs, pairs_made
from perfbisect.core.stats import noise
from perfbisect.core.stats.paired_comparison import (
    COLUMNS,
    Ratio,
    Values,
    WorkloadRatios,
    better_or_worse,
    compare_builds,
    costs_of_each_workload,
    group_summaries,
    is_machine_cpu,
    workloads_and_builds_without_metric,
)
from perfbisect.core.stats.release_series import speed_lines
from perfbisect.report import series
from perfbisect.report.command_line import bisect_command
from perfbisect.report.document import (
    Cell,
    Code,
    Document,
    Facts,
    Prose,
    Remarks,
    Row,
    Section,
    Table,
    host_line,
    missing_cell,
    nonempty_sections,
    ratio_cell,
    row,
    row_with_name_last,
    tools_and_settings,
    value_cell,
)
from perfbisect.wording.quantities import MISSING, count, decimals, duration, figure, low_to_high, one_or_count, percent
from perfbisect.wording.text import metric_title, with_unit
from perfbisect.wording.trials import (
    compared_metric_title,
    comparison_sentence,
    no_result_sentences,
    paired_noise_sentences,
    proof_sentences,
    run_counts,
)

ABSOLUTE, RELATIVE = "--- absolute", "--- relative to first result"
RatioCell = Callable[[str, int, Ratio], Cell]  # workload, number of the build, ratio → cell
CounterCell = Callable[[float, float], Cell]  # value of the baseline, ratio of a build → cell
SIDES = ("parent", "culprit", "third")  # classes of colours, by build; builds after the third have its colour
TONES = {"worse": "bad", "better": "good", "": "unclear"}


def document(
    trial: SessionState, *, detailed: bool = True, for_page: bool = False, history: Path | None = None
) -> Document:
    """The report of a trial; ``detailed`` adds the costs per operation, and ``for_page`` adds charts."""
    request = trial.request
    names = [build.name for build in request.subjects]
    of = names if len(names) <= 4 else [names[0], "…", names[-1]]
    works = one_or_count([work.name for work in request.works])
    body: Iterable[Section]
    if request.kind is TrialType.NOISE:
        summary, body, in_a_line = noise_summary(trial), noise_sections(trial), ""
    else:
        rows = [] if request.series else compare_builds(trial, request.metric)
        parts = series.series_sections(trial) if request.series else comparison_sections(trial, rows, for_page=for_page)
        spent = Section("Per operation", tuple(cost_tables(trial, rows)), "operations", hide_title=True, is_folded=True)
        notes = Remarks(tuple((text, "") for text in trial_remarks(trial)))
        body = (*parts, *((spent,) if detailed else ()), Section("Remarks", (notes,), "remarks", hide_title=True))
        summary = tuple(proof_sentences(trial) if request.kind is TrialType.PROVE else comparison_sentence(trial, rows))
        in_a_line = "" if summary else headline(trial, rows, names)
    return Document(
        session=f"{request.kind.trial_noun[0].upper()}{request.kind.trial_noun[1:]} {trial.name}",
        subject=f"{request.builder} {works}: {', '.join(of)}",
        started=trial.began,
        state=": ".join(filter(None, (trial.state, trial.failure))),
        facts=Facts(tuple(setting_facts(trial))),
        summary=summary,
        headline=in_a_line,
        sections=nonempty_sections(*body, *(page_only_sections(trial, history) if for_page else ())),
    )


def setting_facts(trial: SessionState) -> Iterator[tuple[str, str]]:
    """Names and values of the settings that are not empty: builder, metric, pairing, host, …."""
    request = trial.request
    changed = "".join(f", {name} {value}" for name, value in request.overrides.items())
    texts = {
        "builder": f"{request.builder}{f', variant {request.variant}' * bool(request.variant)}",
        "measured": f"{metric_title(request.metric)}{changed}; {run_counts(trial)}",
        "pairing": trial.pairing.why if trial.pairing else "",
        "origin": f"imported from {trial.origin}" if trial.origin else "",
        "host": host_line(trial.host),
    }
    yield from ((name, text) for name, text in texts.items() if text)


def headline(trial: SessionState, rows: Sequence[WorkloadRatios], names: Sequence[str]) -> str:
    """The result in one line: the number of worse and better ratios; for a series of releases, the number of steps."""
    request, works = trial.request, count(len(trial.request.works), "workload")
    if request.series:
        steps = sum(len(line.steps) for line in speed_lines(trial))
        return f"{names[0]} to {names[-1]} of {request.builder}: {count(steps, 'step')} in {works}"
    tones = [better_or_worse(ratio, request.metric) for row in rows for ratio in row.ratios if ratio]
    differences = " and ".join(f"{word} in {tones.count(word)}" for word in ("worse", "better") if word in tones)
    total = works if len(names) == 2 else count(len(tones), "ratio")
    answer = f"{differences} of" if differences else "no real difference in"
    return f"{', '.join(names[1:])} against {names[0]}: {answer} {total}"


def comparison_sections(trial: SessionState, rows: Sequence[WorkloadRatios], *, for_page: bool) -> Iterator[Section]:
    """The sections of a comparison: the ratios, their confidence intervals, groups of workloads, and service levels."""
    if for_page:
        title = f"Relative to {trial.request.subjects[0].name}"
        yield Section(title, (Prose(column_legend(trial)), ratio_table_with_drawings(trial, rows)), "ratios")
        yield from series.installed_release_sections(trial)
    else:
        parts = Prose(column_legend(trial)), ratio_table(trial, rows)
        yield Section("Relative table", parts, "table", hide_title=True)
        yield Section("Intervals", (interval_table(trial, rows),), hide_title=True)
    titles = column_titles(trial)
    groups = [
        row_with_name_last(
            f"{summary.group}, {titles[summary.subject - 1]}" if len(titles) > 1 else summary.group,
            map(ratio_cell, (summary.least, summary.most, summary.average, summary.median)),
        )
        for summary in group_summaries(rows)
    ]
    if groups:
        yield Section("Ratios in each workload group", (trial_table(("min", "max", "avg", "median"), "group", groups),))
    if levels := background_rate_table(trial):
        yield Section("Service levels", (levels,), hide_title=True)


def column_titles(trial: SessionState) -> tuple[str, ...]:
    """The column titles col-1, col-2 … for each build except the baseline."""
    return tuple(f"col-{number}" for number in range(1, len(trial.request.subjects)))


def trial_table(
    head: Sequence[str],
    name_title: str,
    rows: Sequence[Row],
    lines_above: tuple[str, ...] = (),
    kind: str = "",
    csv_head: tuple[str, ...] = (),
) -> Table:
    """A table with the names of the rows in the last column, whose title is ``name_title``."""
    csv_titles = (*csv_head, name_title) if csv_head else ()
    return Table((*head, name_title), tuple(rows), head, lines_above, kind, numbers_first=True, csv_head=csv_titles)


def column_legend(trial: SessionState) -> tuple[str, ...]:
    """Lines of text that explain the columns: the build of each column, its version and path, and the baseline."""
    builds = []
    for build in trial.request.subjects:
        version = f" ({build.version})" if build.version and build.version not in build.name else ""
        config = f"+{build.config}" if build.config else ""
        builds.append(f"{build.name}{version}" + (f" = {build.path}{config}" if build.path else ""))
    further = zip(column_titles(trial), builds[1:], strict=True)
    title = f"{compared_metric_title(trial)} relative to: {builds[0]}"
    return (title, *(f"{column} : {name}" for column, name in further))


def ratio_table(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Table:
    """The table of ratios. The culprit of a hunted drop is a note at the ratio or, in CSV, a separate column."""
    works = trial.request.works
    hunts = {(works[drop.work].name, drop.last): drop for drop in sorted(trial.hunts, key=lambda drop: drop.hunt)}

    def cell(work: str, build: int, ratio: Ratio) -> Cell:
        hunt, note = hunts.get((work, build)), ""  # the latest hunt that ends at this build
        culprit = (hunt.culprit or hunt.state if hunt else "",) if hunts else ()
        if hunt:
            state = f"hunt {hunt.hunt}" if hunt.state in ("running", "interrupted") else hunt.state
            note = hunt.culprit[:10] or state
        shown = f"{ratio.ratio:.2f}", *culprit
        return Cell(decimals(ratio.ratio, 2), shown, better_or_worse(ratio, trial.request.metric), note)

    head = column_titles(trial)
    plain = tuple(text for column in head for text in (column, f"{column} culprit")) if hunts else ()
    table_rows = [*rows_with_group_gaps(rows, cell, 2 if hunts else 1)]
    return trial_table(head, "workload", table_rows, kind="relative", csv_head=plain)


def interval_table(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Table:
    """The table of the confidence intervals. In CSV, the table also states whether each ratio is better or worse."""
    counts = sorted({ratio.rounds for row in rows for ratio in row.ratios if ratio}) or [0]
    rounds = f"{counts[0]} to {count(counts[-1], 'round')}" if len(counts) > 1 else count(counts[0], "round")

    def cell(_work: str, _build: int, ratio: Ratio) -> Cell:
        ends = (f"{ratio.interval.low:.4f}", f"{ratio.interval.high:.4f}") if ratio.interval else ("", "")
        return Cell(low_to_high(ratio.interval), (*ends, better_or_worse(ratio, trial.request.metric)))

    title = f"95 % intervals, from {run_counts(trial, rounds)}{'' if counts[-1] > 1 else ' (– : needs 2 rounds)'}"
    plain = tuple(f"{column} {part}" for column in column_titles(trial) for part in ("low", "high", "real"))
    table_rows = [*rows_with_group_gaps(rows, cell, 3)]
    return trial_table(column_titles(trial), "workload", table_rows, (title,), csv_head=plain)


def rows_with_group_gaps(rows: Sequence[WorkloadRatios], make_cell: RatioCell, csv_columns: int) -> Iterator[Row]:
    """A row for each workload, and an empty row between groups of workloads, except if each group has only one
    workload. In CSV, each cell fills ``csv_columns`` columns."""
    several, no_value = len({row.group for row in rows}) < len(rows), missing_cell(csv_columns)
    for number, line in enumerate(rows):
        if number and several and line.group != rows[number - 1].group:
            yield Row(())
        cells = (
            make_cell(line.work, build, ratio) if ratio else no_value for build, ratio in enumerate(line.ratios, 1)
        )
        yield row_with_name_last(line.work, cells)


def ratio_table_with_drawings(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Table:
    """The table of ratios for a page: a row for each workload and build, with a drawing of the ratio's interval."""
    drawn_rows = []
    for comparison in rows:
        for subject, ratio in zip(trial.request.subjects[1:], comparison.ratios, strict=True):
            interval = ratio.interval if ratio else None
            shown, rounds = (decimals(ratio.ratio, 3), ratio.rounds) if ratio else (MISSING, 0)
            cells = row(comparison.work, subject.name, shown, low_to_high(interval), str(rounds)).cells
            tone = TONES[better_or_worse(ratio, trial.request.metric) if ratio else ""]
            drawn_rows.append(Row(cells, interval, tone))
    above = (f"{metric_title(trial.request.metric)} with 95 % intervals from paired rounds.",)
    head = ("workload", "build", "ratio", "95 %", "rounds")
    return Table(head, tuple(drawn_rows), head[2:], above, "ratios", "ratio to the first build", ("95 %", "rounds"))


def cost_tables(trial: SessionState, rows: Sequence[WorkloadRatios]) -> Iterator[Table]:
    """For each workload, tables of costs and counters per operation: absolute, and relative to the first build."""
    builds = [subject.name for subject in trial.request.subjects]
    unit = "cpu/o in % of the machine per o/s" if is_machine_cpu(trial) else "cpu/o in µs"

    # If each operation is a whole run of a command, the table has no column qps: the metric shows the speed.
    names = COLUMNS[:-1] if all(run.facts.operations == 1 for run in trial.runs) else (*COLUMNS, "qps")
    together = "paired runs, not by pairs" if trial.is_paired else "interleaved runs"
    way = f", medians of {together}" * bool(trial.pairing)

    def of(values: Sequence[Values], of_rows: Sequence[str], cell: Callable[[float], Cell], *above: str) -> Table:
        filled = [(name, of) for name, of in zip(names, zip(*values, strict=True), strict=False) if set(of) - {None}]
        cells = ([missing_cell() if value is None else cell(value) for value in of] for _, of in filled)
        rows = [row_with_name_last(name, of_row) for *of_row, name in zip(*cells, of_rows, strict=True)]
        return trial_table([name for name, _ in filled], "build", rows, above)

    for spent in costs_of_each_workload(trial):
        if any(set(values[: len(names)]) - {None} for values in spent.absolute):
            yield of(spent.absolute, builds, value_cell, f"{spent.work}, {unit}{way}", ABSOLUTE)
            if builds[1:]:
                yield of(spent.relative, builds[1:], ratio_cell, RELATIVE)
    for comparison in rows if not trial.request.shared else ():  # workloads of one command share their counters
        shown = {name: of for name, of in comparison.counters.items() if name != "qps" or name in names}
        if shown.keys() - {"qps", *COLUMNS}:  # some counters are not in the tables of costs
            further = replace(comparison, counters=shown)
            yield counter_table(trial, further, f"relative to {builds[0]}{way}", lambda _, ratio: ratio_cell(ratio))
            yield counter_table(trial, further, f"absolute{way}", lambda base, ratio: value_cell(base * ratio))


def counter_table(trial: SessionState, work: WorkloadRatios, title: str, make_cell: CounterCell) -> Table:
    """The table of a workload's counters per operation; ``make_cell`` makes the cells after the first column."""
    rows = [
        row_with_name_last(
            name, (value_cell(base), *(missing_cell() if ratio is None else make_cell(base, ratio) for ratio in ratios))
        )
        for name, (base, *ratios) in work.counters.items()
        if base is not None
    ]
    return trial_table(("baseline", *column_titles(trial)), "per operation", rows, (f"{work.work}, {title}",))


def background_rate_table(trial: SessionState) -> Table | None:
    """The table of the background rates (service levels) that each build sustained; None without background loads."""

    def cell(rate: float, sustained: bool = True) -> Cell:
        return Cell(figure(rate), (f"{rate:.6g}", "" if sustained else "fails"), "" if sustained else "worse")

    rows = [
        row_with_name_last(
            work, [cell(rate), *(cell(build.held, build.sustained) if build else missing_cell(2) for build in held)]
        )
        for work, held, _ in background_rates(trial)
        if (rate := next((build.wanted for build in held if build), None)) is not None
    ]
    head = ("wanted", "baseline", *column_titles(trial))
    plain = tuple(f"{column}{part}" for column in head for part in ("", " SLA"))
    return trial_table(head, "workload", rows, ("Background rows per second",), csv_head=plain) if rows else None


def trial_remarks(trial: SessionState) -> Iterator[str]:
    """Remarks about results of hunts, missing values, missed service levels, busy clients, and equal binaries."""
    subjects, works = trial.request.subjects, trial.request.works
    for drop in trial.hunts:
        result = f"{drop.culprit[:10]} {drop.subject}".strip() or drop.state
        ends = f"{subjects[drop.first].name} to {subjects[drop.last].name}"
        yield f"{works[drop.work].name}, {ends}: {result} (hunt {drop.hunt})"
    yield from (f"{subject.name} was not measured: {subject.trouble}" for subject in subjects if subject.trouble)
    for skip in trial.skips:
        yield f"{subjects[skip.subject].name} fails in workload {works[skip.work].name}: {skip.facts.reason}"
    for work, held, clients in background_rates(trial):
        for subject, build, client in zip(subjects, held, clients, strict=True):
            if build and not build.sustained:
                rates = f"{figure(build.held)} of {figure(build.wanted)} rows per second"
                yield f"{subject.name} fails the SLA of {work}: it sustains {rates} ({build.role})."
            if client is not None and client >= BUSY:
                yield f"In {work} of {subject.name} the client is busy for {percent(client)} of the time, and may limit the result."
    for work_number, subject_ in workloads_and_builds_without_metric(trial):
        yield f"{subjects[subject_].name} has no value of {trial.request.metric} in {works[work_number].name}."
    alike: dict[tuple[str, str], list[str]] = {}
    for subject in filter(lambda build: build.binary, subjects):
        alike.setdefault((subject.binary, subject.config_hash), []).append(subject.name)
    yield from (f"{' and '.join(names)} have the same binary." for names in alike.values() if len(names) > 1)


def page_only_sections(trial: SessionState, history: Path | None) -> Iterator[Section]:
    """The sections that only a page has: the runs of each workload in order of time, builds, host, and command."""
    from perfbisect.report.page.charts import paired_runs_figure, run_drawings, runs_figure

    request, names = trial.request, [build.name for build in trial.request.subjects]
    compared_by = trial.pairing.metric_of_paired_runs(request.metric) if trial.pairing else request.metric
    colours = [*zip(SIDES, names, strict=False), *[("muted", "and further builds")] * (len(names) > len(SIDES))]
    for number, work in enumerate(request.works):
        runs_of_work = trials.runs_of_workload(trial, number)
        sides = [(SIDES[min(run.subject, 2)], [replace(run.facts, round=str(run.round))]) for run in runs_of_work]
        if runs := run_drawings(sides, find_metric(request.metric).read):
            yield Section(f"{work.name} in order of time", (runs_figure(runs, with_unit(request.metric), colours),))
        for subject, name in enumerate(names[1:], 1):
            facts_of_two = (run.facts for run in runs_of_work if run.subject in (0, subject))
            if pairs := second_and_first_values(pair_runs(facts_of_two), compared_by):
                pair_colours = [*zip(SIDES, (names[0], name), strict=False)]
                drawing = paired_runs_figure(pairs, with_unit(compared_by), pair_colours)
                yield Section(f"{work.name}, paired runs", (drawing,))
    origins = (", ".join(filter(None, (build.commit, build.version, build.path))) for build in request.subjects)
    yield Section("Builds", (Facts(tuple(zip(names, origins, strict=True))),), "builds")
    yield Section("Tools and settings", tools_and_settings([trial.host]), "conditions")
    yield Section("As text", (Code((bisect_command("show", trial.name, history),), "To print this report"),), "repeat")


def noise_summary(trial: SessionState) -> tuple[str, ...]:
    """The summary of an A/A test: the build, the number of visits, and the number of runs."""
    request, subject = trial.request, trial.request.subjects[0]
    estimate = noise.noise_of_trial(trial)
    if estimate is None:
        return tuple(no_result_sentences(trial, "Not known"))
    wild = f", {count(estimate.outliers, 'outlier')} excluded" if estimate.outliers else ""
    groups = count(estimate.visits, "visit" if estimate.runs_share_start else "round")
    # The settings do not contain the duration of a command, so the median duration of its runs is printed.
    seconds = median(run.facts.seconds for run in paired_or_interleaved_runs(trial) if not run.facts.layout)
    title = f"Builder {request.builder}, workload {request.works[0].name}, host {request.host}, build {subject.name}"
    pairs = f"; and {count(2 * pairs_made(trial), 'paired run')}" * bool(pairs_made(trial))
    return (f"{title}: {groups}, {count(estimate.runs, 'run')} of {seconds:.3g} s{wild}{pairs}",)


def noise_sections(trial: SessionState) -> Iterator[Section]:
    """The sections of an A/A test: how much runs vary, and the smallest detectable change."""
    estimate = noise.noise_of_trial(trial)
    if estimate is None:
        return
    groups = "visits" if estimate.runs_share_start else "rounds"
    drift = "" if estimate.runs_share_start else " (drift of the host, most of which cancels in interleaved runs)"
    unknown = f"unknown: at least 2 {groups} (--visits 2) with 2 runs in each (--runs 2) are needed"
    varies = (
        (f"between {groups}", unknown if estimate.between is None else percent(estimate.between) + drift),
        (f"within {groups}", MISSING if estimate.within is None else percent(estimate.within)),
        ("of one run", f"{percent(estimate.run)} (95 % interval: {percent(estimate.low)} to {percent(estimate.high)})"),
    )
    yield Section("Noise of runs (standard deviation)", (Facts(varies),), "noise")
    turns, gains = math.sqrt(2) * estimate.run, False
    if pairs := noise.sd_of_paired_ratios(trial):
        beside = min(filter(None, pairs), default=0.0)
        gains, by_cpu = beside < GAIN * turns, " by CPU time" * (beside == pairs[1])
        sentence = f"The {paired_noise_sentences('runs', *pairs, turns)}."
        yield Section("Paired runs", (Prose((sentence,)),), "pairs", hide_title=True)
    head = ("runs per build", "visits", "time", *(("drop interleaved", f"paired{by_cpu}") if gains else ("drop",)))
    rows = (
        row(
            str(size.runs), str(size.visits), duration(size.seconds), percent(size.drop),
            *([percent(noise.smallest_drop_by_pairs(beside, pairs_made(trial), size.runs))] if gains else []),
        )
        for size in noise.detectable_drops_by_runs(trial, estimate)
    )  # fmt: skip
    table = Table(head, tuple(rows), head)
    yield Section("Smallest detectable drop (95 % confidence, 80 % power)", (table,), "detectable")
    yield Section("Advice", (Prose(tuple(noise.advice_sentences(trial, estimate))),), hide_title=True)
