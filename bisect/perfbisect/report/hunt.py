"""The document of a hunt: verdict, reason, candidates, costs; for a page with what is drawn."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import SAME
from perfbisect.core.explain.evidence import Explanation, FunctionRow
from perfbisect.core.explain.profiles import short
from perfbisect.core.inference.hunt_state import Classification
from perfbisect.report.document import (
    Cell,
    Code,
    Document,
    Facts,
    Notes,
    Part,
    Prose,
    Row,
    Section,
    Table,
    host_line,
    row,
    sections,
    tools,
)
from perfbisect.report.story import BuiltAhead, Case, Story
from perfbisect.wording.comparisons import by_cpu, ratio_title
from perfbisect.wording.functions import beyond, notes, unit_of, waits_of
from perfbisect.wording.glyphs import UNICODE, dumbbell
from perfbisect.wording.quantities import (
    MISSING,
    between,
    builds,
    cached,
    chance,
    compared,
    count,
    decimals,
    duration,
    extent,
    figure,
    ratio,
    share,
    signed,
)
from perfbisect.wording.reasons import plan_lines, plans_sentence
from perfbisect.wording.table import cut
from perfbisect.wording.text import built_with, metric_title, patched
from perfbisect.wording.verdicts import classification_name, effect

Draw = Callable[[int], Iterable[Section]]  # what a page draws of the case at that place

UNITS = {"time/o": "time/o, µs", "cpu/o": "cpu/o, µs", "ipc": "instructions/cycle", "time/cpu": "time/CPU time"}
UNITS |= {metric: f"{metric}, ms" for metric in ("latency", "p95", "p99")}
COUNTERS = ("counter", "parent", "culprit", "ratio", "95 %")
COSTS = ("parent", "culprit", "difference", "share")
LEAST, LISTED = 3, 10  # functions in text: the first of them anyway, the others where they differ beyond noise
TONES = {  # of a classification: the class of its colour
    Classification.BASELINE: "good",
    Classification.GOOD: "good",
    Classification.BAD: "bad",
    Classification.CULPRIT: "culprit",
    Classification.SKIPPED: "skipped",
}


def document(story: Story, draw: Draw | None = None, extent_drawn: Section | None = None) -> Document:
    """The report of a hunt; for a page ``draw`` gives what is drawn of each case."""
    hunt, settings = story.hunt, story.settings
    found = [section for place in range(len(story.cases)) for section in of_case(story, place, draw)]
    proofs = tuple(f"{name}: {' '.join(sentences)}" for name, sentences in story.proofs.items())
    folded = tools(story.hosts) if draw else ()
    return Document(
        session=f"Hunt {hunt.id}{hunt.origin and f' of {hunt.origin}'}",
        what=f"{settings.builder} {settings.workload}: {settings.good}..{settings.bad}",
        started=hunt.started,
        state=hunt.state,
        facts=Facts(tuple(facts(story))),
        summary=story.verdict or tuple(so_far(story)),
        headline=headline(story),
        sections=sections(
            Section("Proofs", (Prose(proofs),), quiet=True) if proofs else None,
            *found,
            candidates(story, page=draw is not None),
            extent_drawn,
            Section("Warnings", (Notes(tuple(story.warnings.items())),)) if story.warnings else None,
            Section("Tools and settings", folded, "conditions") if folded else None,
            Section("Costs", (costs(story),), "costs", quiet=True),
            Section("For a mail or an issue", tuple(Code(case.issue) for case in story.cases)),
            Section("Repeat it", tuple(commands(story)), "repeat", quiet=True),
        ),
    )


def facts(story: Story) -> Iterator[tuple[str, str]]:
    """What was hunted, how, and where."""
    settings, hunt = story.settings, story.hunt
    if settings.name:
        yield "name", settings.name
    size = extent(hunt.commits, hunt.candidates, hunt.merges)
    yield "range", f"{settings.good}..{settings.bad} of {settings.repository}: {size}"
    yield "builder", f"{settings.builder}, {settings.variant}"
    changed = "".join(f", {name} {value}" for name, value in settings.overrides.items())
    yield "workload", f"{settings.workload}{changed}; metric {metric_title(settings.metric)}"
    for name, text in (
        ("chosen", story.why_metric),
        ("pairing", story.pairing.why if story.pairing else ""),
        ("together", story.together),
        ("build", built_with(settings.system)),
        ("command", settings.quick.run if settings.quick else ""),
        *(("patch", text) for text in patches(story)),
        ("left out", left_out(story)),
    ):
        if text:
            yield name, text
    yield from (("host", text) for text in [*map(host_line, story.hosts)] or settings.hosts)


def patches(story: Story) -> list[str]:
    """The patches of the hunt, each with the number of builds that have it."""
    built = [each for each in story.candidates if each.patches]
    names = dict.fromkeys(name for each in built for name in each.patches)
    return [
        f"{name}, in {sum(each.patches.get(name, False) for each in built)} of {count(len(built), 'build')}"
        for name in names
    ]


def left_out(story: Story) -> str:
    """How many candidates were left out, and by what; empty if none was. They have no row of their own."""
    size = sum(each.left_out for each in story.candidates)
    by = " ".join(f"--skip {text}" for text in story.settings.skips)
    return f"{count(size, 'candidate')}, by {by}" if size else ""


def so_far(story: Story) -> Iterator[str]:
    """What is known before there is a verdict."""
    yield from story.found
    yield "There is no verdict yet."
    if story.hunt.failure:
        yield f"The last session failed: {story.hunt.failure}"
    if story.effect is not None:
        yield f"{metric_title(story.settings.metric)}{by_cpu(story.pairing)} of bad is {ratio(story.effect)} of that of good."
    if story.costs.ahead and story.hunt.state == "running":
        for name, commit in story.costs.ahead.in_flight.items():
            yield f"Host {name} is building {commit.short}  {commit.title}"


def headline(story: Story) -> str:
    """The verdict in a line, where it names one commit."""
    if len(story.cases) != 1 or story.hunt.state != "found":
        return ""
    [case] = story.cases
    what = effect(case.ratio, story.settings.metric)
    what += "" if case.ratio.bound else f" in {metric_title(story.settings.metric)}{by_cpu(story.pairing)}"
    return f"{case.commit.short}: {what}"


def of_case(story: Story, place: int, draw: Draw | None) -> Iterator[Section]:
    """A change that the verdict names: which commit it is, and why it is slower; drawn, with its runs and its diff."""
    case, anchor = story.cases[place], f"case-{place + 1}"
    commit = case.commit
    about = (
        ("commit", commit.sha),
        ("author", ", ".join(filter(None, (commit.author, commit.date)))),
        ("subject", commit.subject),
        ("link", case.link),
        ("parents", ", ".join(f"{parent.short}  {parent.subject}" for parent in case.parents)),
    )
    title = "The commit" if len(story.cases) == 1 else f"Change {place + 1}"
    yield Section(title, (Facts(tuple(pair for pair in about if pair[1])),), anchor, quiet=True)
    if case.plans:
        said = (Prose((plans_sentence(case.plans, commit.short),)), Code(tuple(plan_lines(case.plans))))
        yield Section("Another plan", said, f"{anchor}-plans", quiet=True, within=True)
    why: tuple[Part, ...] = (Prose((case.why,)), *counters(case), Notes(tuple((text, "") for text in missing(case))))
    yield Section(f"Why {commit.short}", why, f"{anchor}-why", within=True)
    if case.pairs and not draw:
        yield Section("At the same time", (pairs(case),), quiet=True)
    if draw:
        yield from draw(place)
    elif tables := tuple(function_tables(case.explanation)):
        yield Section("Functions", tables, quiet=True)


WIDE = 24  # columns of a dumbbell
PAIRS = 40  # that text shows


def pairs(case: Case) -> Table:
    """The latest rounds of the commit and a parent: what both needed at the same time, as a dumbbell."""
    shown = case.pairs[-PAIRS:]
    every = [each for pair in shown for each in pair]
    rows = [
        row(
            figure(before), figure(after), f"×{decimals(after / before, 3)}",
            "".join(dumbbell(before, after, (min(every), max(every)), WIDE, UNICODE)),
        )
        for before, after in shown
    ]  # fmt: skip
    latest = f"the latest {PAIRS} of {count(len(case.pairs), 'pair')}" if len(case.pairs) > PAIRS else "each pair"
    return Table(
        ("parent ○", "commit ●", "ratio", ""), tuple(rows), ("parent ○", "commit ●", "ratio"),
        above=(f"{titled(case.pairs_metric)} of both, in {latest}:",),
    )  # fmt: skip


def titled(metric: str) -> str:
    """A metric with the unit of its values, as an axis or a row is called."""
    return UNITS.get(metric, metric_title(metric))


def counters(case: Case) -> Iterator[Table]:
    """What was counted for a culprit and its parent; what moved furthest beyond its noise comes first.

    Where perf has counted for a part of the time and extrapolated, the share of the time is beside the name.
    """
    rows = []
    for each in case.explanation.counters:
        partly = f" ({share(each.share)} counted)" if each.share < 1 else ""
        cells = row(
            titled(each.name) + partly,
            figure(each.parent),
            figure(each.culprit),
            f"×{decimals(each.ratio.middle, 2)}",
            between(each.ratio if each.rounds > 1 else None),
        ).cells
        rows.append(Row(cells, each.ratio, "unclear" if not each.moved else "bad" if each.ratio.middle > 1 else "good"))
    if rows:
        axis = "ratio of culprit to parent"
        yield Table(COUNTERS, tuple(rows), COUNTERS[1:], name="counters", axis=axis, minor=COUNTERS[-1:])


def missing(case: Case) -> Iterator[str]:
    """A sentence for each part that was not measured."""
    yield from case.explanation.missing
    known = {row.name for row in case.explanation.counters}
    absent = [each.metric for each in case.counters if each.parent is None and each.culprit is None]
    names = [name for name in absent if name not in known and not find_metric(name).of_some]
    if names:
        yield f"Not counted on this host: {', '.join(names)}."


def function_tables(found: Explanation) -> Iterator[Table]:
    """The functions whose costs differ most."""
    for above, measured in profiled(found):
        rows = [
            row(cut(short(each.function), 48), each.binary, *costs_of(each), "; ".join(notes(each, found.changed)))
            for place, each in enumerate(measured)
            if place < LEAST or (place < LISTED and beyond(each))
        ]
        yield Table(("function", "binary", *COSTS, ""), tuple(rows), COSTS, (above,))


def profiled(found: Explanation) -> Iterator[tuple[str, Sequence[FunctionRow]]]:
    """The functions, with what their costs are: of waiting where that is a reason, and of work."""
    for what, measured in (
        ("Waiting of each function per operation, µs", waits_of(found)),
        (f"Own cost of each function per operation, {unit_of(found.unit)}", found.functions),
        (f"Instructions of each function per {'run' if found.whole_runs else 'operation'}", found.counts),
    ):
        if measured:
            yield f"{what}; share of the whole difference", measured


def costs_of(each: FunctionRow) -> tuple[str, ...]:
    """What a function costs in both builds, by how much that differs, and its share of the whole difference."""
    part = share(each.part) if each.part else MISSING
    return figure(each.parent), figure(each.culprit), signed(each.difference), part


def candidates(story: Story, *, page: bool) -> Section | None:
    """Everything that was built, measured or skipped, oldest first; on a page subjects are beside their commits."""
    if not story.candidates:
        return None
    relative = ratio_title(story.settings.metric, story.pairing)
    sure = {} if story.verdict else {each.commit.sha: chance(each.probability) for each in story.suspects}
    rows = []
    for each in story.candidates:
        if each.left_out:
            continue
        baseline = each.state is Classification.BASELINE
        commit, subject = each.commit, (Cell(each.commit.subject),)
        numbers = row(
            commit.date or MISSING,
            *compared(each.ratio, baseline=baseline, unknown=MISSING),
            str(each.runs) if each.runs else MISSING,
            builds(each.builds, each.build_seconds, duration, shared=each.shared, reused=each.reused, unknown=MISSING),
            share(each.hit_rate),
            classification_name(each.state),
            *([sure.get(commit.sha, MISSING)] if sure else []),
        ).cells
        own = SAME if baseline else each.ratio
        name = Cell(commit.short, note=commit.subject if page else "")
        rows.append(Row((name, *numbers, *(() if page else subject)), own, TONES.get(each.state, "unclear")))
    last = (*(("sure",) if sure else ()), *(() if page else ("subject",)))
    head = ("commit", "date", relative, "95 %", "runs", "build", "ccache", "state", *last)
    table = Table(
        head, tuple(rows), (relative, "runs", "build", "ccache", "sure"), name="ladder", axis=f"ratio of {relative[1:]}",
        minor=("ccache", "date", "build", "runs", "state", "95 %"),
    )  # fmt: skip
    title = f"oldest first; {relative} is relative to {story.settings.good}"
    said = Notes(tuple((remark, "") for remark in remarks(story)))
    return Section(f"Candidates, {title}", (table, said), "ladder", folded=True)


def remarks(story: Story) -> Iterator[str]:
    """What the table has no column for."""
    known = {each.commit.sha for each in story.candidates}
    suspects = [each for each in story.suspects if not (story.verdict or each.commit.sha in known)]
    if suspects:
        yield f"not measured yet: {', '.join(f'{each.commit.short} ({chance(each.probability)})' for each in suspects)}"
    for each in story.candidates:
        if each.skipped and not each.left_out:
            yield f"{each.commit.short} was skipped, {each.skipped}"
        if each.stopped:
            yield f"{each.commit.short} is {each.stopped}"
        if each.further:
            how = "timed" if story.settings.prior.exact else "counted exactly"
            yield f"{each.commit.short} was also {how}, in {count(each.further, 'run')}"
        if each.patches:
            yield f"{each.commit.short} was built {patched(each.patches)}"
        if each.same_as:
            yield f"{each.commit.short} is the same binary as {each.same_as.short}"


def costs(story: Story) -> Prose:
    """What the hunt has cost, and what was built ahead."""
    costs = story.costs
    found = cached(costs.hit_rate, costs.remote_rate)
    cache = f" ({found})" if found else ""
    shared = f" and {costs.shared} from the shared builds" if costs.shared else ""
    spent = (
        f"Cost: {count(costs.builds, 'build')}{shared} in {duration(costs.build_seconds)}{cache},"
        f" {count(costs.runs, 'run')} in {duration(costs.run_seconds)}; {duration(costs.seconds)} in all."
    )
    return Prose((spent, f"Built ahead: {built_ahead(costs.ahead)}.") if costs.ahead else (spent,))


def built_ahead(ahead: BuiltAhead) -> str:
    """How many builds each build host has made, and what was of no use."""
    parts = [f"{count(made, 'build')} on {name}" for name, made in ahead.builds.items()]
    if ahead.unused:
        parts.append(f"{ahead.unused} of them not measured ({duration(ahead.unused_seconds)})")
    if ahead.ended:
        parts.append(f"{ahead.ended} more ended before they were finished ({duration(ahead.ended_seconds)})")
    return ", ".join(parts)


def commands(story: Story) -> Iterator[Code]:
    """The commands that repeat, resume and prove the hunt."""
    yield Code((story.again,), "To repeat")
    if story.hunt.origin:  # its commands and its hosts are another user's
        return
    if not story.verdict or story.suspects:
        yield Code((story.go_on,), "To resume")
    if story.cases:
        yield Code((story.prove,), "To prove")
