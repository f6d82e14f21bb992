"""Composes the report of a hunt: verdict, reason, candidates and costs; for an HTML page also drawings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfbisect.core.domain.facts import RunFacts, SkipFacts, seconds_by_phase
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import SAME
from perfbisect.core.explain.evidence import Explanation
from perfbisect.core.explain.profiles import short_name
from perfbisect.core.inference.classification import Classification, classify
from perfbisect.report.command_line import bisect_command, command_to_compare, command_to_run
from perfbisect.report.document import (
    Cell,
    Code,
    Document,
    Facts,
    Part,
    Prose,
    Remarks,
    Row,
    Section,
    Table,
    host_line,
    nonempty_sections,
    row,
    tools_and_settings,
)
from perfbisect.report.hunt_report import (
    COSTS,
    TONES,
    DiffOf,
    HuntReport,
    NamedChange,
    function_cost_cells,
    is_skipped_by_user,
    titled_function_rows,
)
from perfbisect.wording.functions import an_operation
from perfbisect.wording.glyphs import UNICODE, dumbbell
from perfbisect.wording.quantities import (
    MISSING,
    amount,
    build_times,
    cache_share_text,
    chance,
    count,
    duration,
    extent,
    factor,
    figure,
    low_to_high,
    phase_clause_and_sentence,
    ratio_cells,
    share,
    stopped_run,
)
from perfbisect.wording.reasons import function_notes, query_plan_lines
from perfbisect.wording.table import cut
from perfbisect.wording.text import cited, metric_title, patch_summary, printable, recognised_system_text, with_unit
from perfbisect.wording.trials import ratio_title
from perfbisect.wording.verdicts import classification_name, effect

COUNTERS = ("counter", "parent", "culprit", "ratio", "95 %")
LARGE = 1e6, 1e4  # smallest counter value, and smallest number of microseconds, that are written with a unit
LEAST, LISTED = 3, 10  # a text lists LEAST functions, and up to LISTED functions that differ beyond noise


def document(report: HuntReport, diff_of: DiffOf | None = None) -> Document:
    """The report of a hunt. ``diff_of`` returns a diff; it is given only for a page, which also has drawings."""
    hunt, settings, state = report.summary, report.settings, report.state
    changes = [section for index in range(len(report.changes)) for section in change_sections(report, index, diff_of)]
    named = report.proof_sentences.items()
    proofs = tuple(f"{'Proof ' * name.startswith('p')}{name}: {' '.join(sentences)}" for name, sentences in named)
    hosts = state.started.hosts if diff_of and state.started else ()
    narrowing: Iterable[Section] = ()
    if diff_of:
        from perfbisect.report.page.hunt import possible_parts_sections, search_sections

        narrowing = (*possible_parts_sections(report, diff_of), *search_sections(report))
    return Document(
        session=f"Hunt {hunt.id}{hunt.origin and f' of {hunt.origin}'}",
        subject=f"{settings.builder} {settings.workload}: {settings.good}..{settings.bad}",
        started=hunt.started,
        state=hunt.state,
        facts=Facts(tuple(setting_facts(report))),
        summary=report.verdict_sentences or tuple(unfinished_hunt_sentences(report)),
        headline=headline(report),
        sections=nonempty_sections(
            Section("Proofs", (Prose(proofs),), hide_title=True) if proofs else None,
            *changes,
            candidates_section(report, on_page=diff_of is not None),
            *narrowing,
            Section("Warnings", (Remarks(tuple(report.advice_by_warning.items())),)),
            Section("Tools and settings", tools_and_settings(hosts), "conditions"),
            Section("Costs", (cost_sentences(report),), "costs", hide_title=True),
            Section(
                "Summary for a mail or an issue",
                tuple(Code(tuple(issue_lines(report, change))) for change in report.changes),
            ),
            Section("Repeat the hunt", tuple(next_commands(report)), "repeat", hide_title=True),
        ),
    )


def setting_facts(report: HuntReport) -> Iterator[tuple[str, str]]:
    """The names and values of the hunt's settings, such as range, builder and host; empty settings are left out."""
    settings, hunt, state = report.settings, report.summary, report.state
    size = extent(hunt.commits, hunt.candidates, hunt.merges)
    if settings.narrows:
        size = f"the diff of the culprit of hunt {settings.narrows}"
    changed = "".join(f", {name} {of}{' s' * (name in ('time', 'warmup'))}" for name, of in settings.overrides.items())
    built = [row.builds[-1].patches for _, row in report.tested_commits if row.builds and row.builds[-1].patches]
    left_out = sum(is_skipped_by_user(row) for _, row in report.tested_commits)
    by = " ".join(f"--skip {text}" for text in settings.skips)
    for name, text in (
        ("name", settings.name),
        ("range", f"{settings.good}..{settings.bad} of {settings.repository}: {size}"),
        ("builder", f"{settings.builder}, variant {settings.variant}"),
        ("workload", f"{settings.workload}{changed}; metric {metric_title(settings.metric)}"),
        ("chosen", state.chosen.why),
        ("pairing", state.pairing.why if state.pairing else ""),
        ("together", report.shared_builds_text),
        ("build", recognised_system_text(settings.system)),
        ("command", settings.quick.run if settings.quick else ""),
        *(
            (
                "patch",
                f"{patch}, in {sum(patches.get(patch, False) for patches in built)} of {count(len(built), 'build')}",
            )
            for patch in dict.fromkeys(patch for patches in built for patch in patches)
        ),
        ("skipped", f"{count(left_out, 'candidate')}, by {by}" if left_out else ""),  # the table omits them
    ):
        if text:
            yield name, text
    yield from (("host", text) for text in (map(host_line, state.started.hosts) if state.started else settings.hosts))


def unfinished_hunt_sentences(report: HuntReport) -> Iterator[str]:
    """The state of a hunt without a verdict, in sentences."""
    yield from report.proven_so_far_sentences
    yield "There is no verdict yet."
    if report.summary.failure:
        yield f"The last attempt failed: {report.summary.failure}"
    if report.ratio_of_ends is not None:
        yield f"{report.wording.ends_ratio(report.ratio_of_ends)}."
    if report.costs.ahead and report.summary.state == "running":
        for name, commit in report.costs.ahead.in_flight.items():
            yield f"Host {name} is building {commit.short_sha}  {commit.short_subject}"


def headline(report: HuntReport) -> str:
    """The verdict in one line if it names exactly one commit, otherwise ""."""
    if len(report.changes) != 1 or report.summary.state != "found":
        return ""
    [change] = report.changes
    size, is_bound = effect(change.step.ratio, report.settings.metric), change.step.ratio.only_known_bound
    return f"{change.commit.short_sha}: {size}{'' if is_bound else f' in {report.wording.metric_text}'}"


def change_sections(report: HuntReport, position: int, diff_of: DiffOf | None) -> Iterator[Section]:
    """The sections about a change that the verdict names: commit, reason; if ``diff_of`` is given also drawings, runs,
    diff."""
    change, anchor, settings = report.changes[position], f"case-{position + 1}", report.settings
    commit, explanation = change.commit, change.explanation
    about = (
        ("commit", commit.sha),
        ("author", ", ".join(filter(None, (commit.author, commit.date)))),
        ("subject", commit.subject),
        ("link", report.link_of(commit.sha)),
        ("parents", ", ".join(f"{parent.short_sha}  {parent.subject}" for parent in change.parents)),
    )
    title = "The part" if settings.narrows else "The commit" if len(report.changes) == 1 else f"Change {position + 1}"
    yield Section(title, (Facts(tuple(pair for pair in about if pair[1])),), anchor, hide_title=True)
    if explanation.plans:
        statements = count(len(explanation.plans), "statement")
        has = "has" if len(explanation.plans) == 1 else "have"
        since = f"Since {commit.short_sha}, {statements} of the workload {has} another query plan."
        parts = (Prose((since,)), Code(tuple(query_plan_lines(explanation.plans))))
        yield Section("Query plans", parts, f"{anchor}-plans", hide_title=True, is_subsection=True)
    absent = Remarks(tuple((text, "") for text in unknown_reason_sentences(change, report.typical_values(change.step))))
    reasons: list[Part] = [Prose(change.reason_sentences), *counter_tables(explanation), absent]
    yield Section(f"Why {commit.short_sha}", tuple(reasons), f"{anchor}-why", is_subsection=True)
    if diff_of:
        from perfbisect.report.page.hunt import page_sections_of_change

        yield from page_sections_of_change(report, diff_of, position)
        return
    if change.pairs:
        yield Section("Paired runs", (pairs_table(change.pairs, report.pairs_metric),), hide_title=True)
    if tables := tuple(function_cost_tables(explanation)):
        yield Section("Functions", tables, hide_title=True)


def issue_lines(report: HuntReport, change: NamedChange) -> Iterator[str]:
    """The lines of a text that reports a change by mail or in an issue tracker."""
    settings, state, teller, step, commit = report.settings, report.state, report.wording, change.step, change.commit
    parent = change.parents[0].short_sha if change.parents else f"{commit.short_sha}^"
    host = host_line(state.started.hosts[0]) if state.started else settings.host
    yield f"{teller.metric_text}: {effect(step.ratio, settings.metric)} since {cited(commit)}"
    yield f"Commit: {report.link_of(commit.sha) or commit.sha}{f', by {commit.author}' * bool(commit.author)}"
    yield f"Effect: {teller.change_ratio_clause(step.ratio)}; {report.summary.title} on {host}."
    yield f"Probability that this {'part' if settings.narrows else 'commit'} is the culprit: {chance(step.probability)}. {teller.proven_against_sentence(step)}"
    yield f"Why: {' '.join(change.reason_sentences)}"
    again = (
        command_to_run(settings, report.history)
        if settings.narrows
        else command_to_compare(settings, parent, commit.short_sha)
    )
    yield f"Reproduce: {again}"


WIDE = 24  # columns of a dumbbell
PAIRS = 40  # most pairs of runs that a text shows


def pairs_table(pairs: Sequence[tuple[float, float]], metric: str) -> Table:
    """A table of the latest pairs of runs (of a commit and of its parent): the two values, the ratio, and a drawing."""
    shown = pairs[-PAIRS:]
    values = [value for pair in shown for value in pair]
    rows = [
        row(
            figure(parent), figure(culprit), factor(culprit / parent),
            "".join(dumbbell(parent, culprit, (min(values), max(values)), WIDE, UNICODE)),
        )
        for parent, culprit in shown
    ]  # fmt: skip
    latest = f"the latest {PAIRS} of {count(len(pairs), 'pair')}" if len(pairs) > PAIRS else "each pair"
    title = f"{with_unit(metric)} of parent and commit, in {latest} of runs:"
    head = ("parent ○", "commit ●", "ratio", "")
    return Table(head, tuple(rows), head[:3], lines_above=(title,))


def counter_tables(explanation: Explanation) -> Iterator[Table]:
    """A table of the counters of the culprit and its parent; changes that exceed the noise most come first.

    If perf counted only in a part of the time, and extrapolated, this part is shown after the counter's name.
    """
    rows = []
    for counter in explanation.counters:
        partly = f" ({share(counter.share)} counted)" if counter.share < 1 else ""
        cells = row(
            with_unit(counter.name) + partly,
            *(
                amount(value, counter.unit) if value >= LARGE[counter.unit == "us"] else figure(value)
                for value in (counter.parent, counter.culprit)
            ),
            factor(counter.ratio.middle, 2),
            low_to_high(counter.ratio if counter.rounds > 1 else None),
        ).cells
        tone = "unclear" if not counter.is_significant else "bad" if counter.ratio.middle > 1 else "good"
        rows.append(Row(cells, counter.ratio, tone))
    if rows:
        axis = "ratio of culprit to parent"
        unit = an_operation(explanation) + " of the command" * (explanation.operation == "run")
        is_exact = any(counter.rounds <= 1 for counter in explanation.counters)
        notes = (
            f"An operation (o) is {unit}." * (explanation.operation != "operation"),
            "cs/o: context switches per operation." * any(counter.name == "cs/o" for counter in explanation.counters),
            "–: no interval, because the value was counted exactly, or measured once." * is_exact,
        )
        above = tuple(filter(None, notes))
        yield Table(
            COUNTERS, tuple(rows), COUNTERS[1:], above, kind="counters", plot_title=axis, minor_columns=COUNTERS[-1:]
        )


def unknown_reason_sentences(
    change: NamedChange, counted: Mapping[str, tuple[float | None, float | None]]
) -> Iterator[str]:
    """A sentence for each part of the change's explanation that was not measured or is unknown."""
    yield from change.unknown_reasons
    absent = {name for name, sides in counted.items() if sides == (None, None)}
    absent -= {row.name for row in change.explanation.counters}
    if names := [name for name in counted if name in absent and not find_metric(name).is_optional]:
        yield f"Not counted on this host: {', '.join(with_unit(name).partition(',')[0] for name in names)}."


def function_cost_tables(explanation: Explanation) -> Iterator[Table]:
    """For each sort of cost (such as CPU time or waits), a table of the functions whose costs differ most."""
    for above, measured in titled_function_rows(explanation):
        rows = [
            row(
                cut(short_name(function.function), 48),
                function.binary,
                *function_cost_cells(function),
                "; ".join(function_notes(function, explanation.changed)),
            )
            for position, function in enumerate(measured)
            if position < LEAST or (position < LISTED and function.beyond_noise)
        ]
        yield Table(("function", "binary", *COSTS, ""), tuple(rows), COSTS, (above,))


def candidates_section(report: HuntReport, *, on_page: bool) -> Section | None:
    """The table of the candidates that were built, measured or skipped, oldest first; None if there are none.

    The subject of a commit is beside its hash on a page, and in the last column of a text.
    """
    if not report.tested_commits:
        return None
    relative = ratio_title(report.settings.metric, report.state.pairing)
    suspects = () if report.state.verdict else report.suspects
    sure = {suspect.commit.sha: chance(suspect.probability) for suspect in suspects}
    rows = []
    for sha, tested in report.tested_commits:
        if is_skipped_by_user(tested):
            continue
        commit, classification = report.commit(sha), classify(report.state, sha, report.ratios_to_good)
        baseline = classification is Classification.BASELINE
        interval, runs = report.ratios_to_good.get(sha), len(report.search_runs(tested))
        numbers = row(
            commit.date or MISSING,
            *ratio_cells(interval, baseline=baseline, unknown=MISSING),
            str(runs) if runs else MISSING,
            build_times(tested, duration, MISSING),
            share(tested.ccache_hit_rate),
            classification_name(classification),
            *([sure.get(sha, MISSING)] if sure else []),
        ).cells
        name = Cell(commit.short_sha, note=commit.subject if on_page else "")
        cells = (name, *numbers, *(() if on_page else (Cell(commit.subject),)))
        rows.append(Row(cells, SAME if baseline else interval, TONES.get(classification, "unclear")))
    last = (*(("prob.",) if sure else ()), *(() if on_page else ("subject",)))
    head = ("commit", "date", relative, "95 %", "runs", "build", "ccache", "state", *last)
    table = Table(
        head, tuple(rows), (relative, "runs", "build", "ccache", "prob."), kind="ladder", plot_title=f"ratio of {relative[1:]}",
        minor_columns=("ccache", "date", "build", "runs", "state", "95 %"),
    )  # fmt: skip
    title = f"oldest first; {relative} is {relative[1:]} divided by {relative[1:]} of revision {report.settings.good} (good)"
    notes_below = Remarks(tuple((remark, "") for remark in candidate_remarks(report)))
    return Section(f"Candidates, {title}", (table, notes_below), "ladder", is_folded=True)


def candidate_remarks(report: HuntReport) -> Iterator[str]:
    """Remarks about candidates: suspects without runs, failures, stopped and further runs, patches, equal binaries."""
    measured = {sha for sha, _ in report.tested_commits}
    suspects = [suspect for suspect in report.suspects if not (report.state.verdict or suspect.commit.sha in measured)]
    if suspects:
        yield f"not measured yet: {', '.join(f'{suspect.commit.short_sha} ({chance(suspect.probability)})' for suspect in suspects)}"
    for sha, tested in report.tested_commits:
        short, further = report.commit(sha).short_sha, len(tested.runs) - len(report.search_runs(tested))
        if (skip := tested.skip) and not is_skipped_by_user(tested):
            reason = skip.reason.removeprefix("commit ").removeprefix(f"{short} ")
            yield printable(f"{short} was skipped (stage {skip.stage}): {reason}")
        if slower := stopped_run_text(tested.runs):
            yield f"{short} is {slower}"
        if further:
            yield f"{short} was also {'timed' if report.settings.prior.exact else 'counted exactly'}: {count(further, 'run')}"
        if tested.builds and tested.builds[-1].patches:
            yield f"{short} was built {patch_summary(tested.builds[-1].patches)}"
        if tested.same_as:
            yield f"{short} has the same binary as {report.commit(tested.same_as).short_sha}"


def skip_text(skip: SkipFacts) -> str:
    """The stage in which a skipped commit failed, and the reason."""
    return printable(f"{skip.stage}: {skip.reason}")


def stopped_run_text(runs: Sequence[RunFacts]) -> str:
    """A text about the first of ``runs`` that was stopped because it was slow; "" if none was stopped."""
    first = next((run for run in runs if run.slower_than), None)
    return stopped_run(first.slower_than, first.seconds) if first else ""


def cost_sentences(report: HuntReport) -> Prose:
    """Sentences about the cost of a hunt: builds, runs, time, and the builds of build hosts that were not measured."""
    costs = report.costs
    cached_share = cache_share_text(costs.hit_rate, costs.remote_rate)
    incremental = f", {costs.incremental} of them incremental," if costs.incremental else ""
    shared = f" and {costs.shared} from the shared builds" if costs.shared else ""
    largest, phases = phase_clause_and_sentence(seconds_by_phase(report.made_builds))
    spent_on = f" ({', '.join(filter(None, (largest, cached_share)))})" if largest or cached_share else ""
    spent = (
        f"Cost: {count(costs.builds, 'build')}{incremental}{shared} in {duration(costs.build_seconds)}{spent_on},"
        f" {count(costs.runs, 'run')} in {duration(costs.run_seconds)}; {duration(costs.seconds)} in all."
    )
    sentences = tuple(filter(None, (spent, phases)))
    if (ahead := costs.ahead) is None:
        return Prose(sentences)
    parts = [f"{count(number, 'build')} on {name}" for name, number in ahead.builds.items()]
    if ahead.unused:
        parts.append(f"{ahead.unused} of them not measured ({duration(ahead.unused_seconds)})")
    if ahead.ended:
        parts.append(f"{ahead.ended} more stopped before their end ({duration(ahead.ended_seconds)})")
    return Prose((*sentences, f"Built ahead: {', '.join(parts)}."))


def next_commands(report: HuntReport) -> Iterator[Code]:
    """The commands that repeat, resume and prove the hunt."""
    number, history = report.summary.id, report.history
    yield Code((command_to_run(report.settings, history),), "To repeat")
    if report.summary.origin:  # imported: its commands and hosts are another user's
        return
    if not report.verdict_sentences or report.suspects:
        yield Code((bisect_command("resume", number, history),), "To resume")
    if report.changes and not report.settings.narrows:
        yield Code((bisect_command("narrow", number, history),), "To search the diff")
        yield Code((bisect_command("prove", number, history),), "To test a revert")
