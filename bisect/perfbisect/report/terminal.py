"""The report of a hunt as text for a terminal."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from perfbisect.report import cells
from perfbisect.report.content import BuiltAhead, Case, Story
from perfbisect.wording.quantities import cached, count, duration, moment, ratio
from perfbisect.wording.reasons import plan_lines, plans_sentence
from perfbisect.wording.table import cut, table
from perfbisect.wording.text import metric_title, printable

UNLIMITED = 10**9


def render(story: Story, width: int | None = None) -> str:
    """The whole report; lines of tables are cut to ``width`` columns where it is given."""
    inner = UNLIMITED if width is None else width - 2
    parts = [
        header(story),
        verdict(story),
        proofs(story),
        *(part(case) for case in story.cases for part in (plans, explanation)),
        suspects(story, inner),
    ]
    parts += [candidates(story, inner), warnings(story), ending(story)]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part))) + "\n"


def header(story: Story) -> Iterator[str]:
    """The range, the recipes and the hosts."""
    hunt, settings = story.hunt, story.settings
    yield f"Hunt {hunt.id}, {moment(hunt.started)}: {hunt.state}"
    yield f"  range     {settings.good}..{settings.bad} of {settings.repository}: {extent(story)}"
    yield f"  builder   {settings.builder}, {settings.variant}"
    changed = "".join(f", {name} {value}" for name, value in settings.overrides.items())
    yield f"  workload  {settings.workload}{changed}; metric {metric_title(settings.metric)}"
    if story.why_metric:
        yield f"  chosen    {story.why_metric}"
    if story.together:
        yield f"  together  {story.together}"
    if settings.quick:
        yield f"  command   {printable(settings.quick.run)}"
    for patch in cells.patches(story):
        yield f"  patch     {printable(patch)}"
    if skipped := cells.left_out(story):
        yield f"  left out  {printable(skipped)}"
    for number, machine in enumerate(machines(story)):
        yield f"  {'host' if number == 0 else '':9} {machine}"


def extent(story: Story) -> str:
    """The size of the range; its good end is not a candidate."""
    sizes = [count(story.hunt.commits, "commit"), count(story.hunt.candidates, "candidate")]
    return ", ".join([*sizes, count(story.hunt.merges, "merge")] if story.hunt.merges else sizes)


def machines(story: Story) -> Iterator[str]:
    """The hosts with what is known of them."""
    if not story.hosts:
        yield from story.settings.hosts
    for host in story.hosts:
        size = f"{count(host.cores, 'core')}, {host.memory_mib / 1024:.0f} GiB"
        yield f"{host.name}: {host.cpu}, {size}, kernel {host.kernel}, {host.compiler}"


def verdict(story: Story) -> Iterator[str]:
    """The verdict, with the named commits in full; or the state of an unfinished hunt."""
    yield from story.verdict or so_far(story)
    for case in story.cases:
        yield ""
        yield f"  commit   {case.commit.sha}"
        if case.commit.author or case.commit.date:
            yield f"  author   {case.commit.author}, {case.commit.date}"
            yield f"  subject  {case.commit.subject}"


def proofs(story: Story) -> Iterator[str]:
    """What reverting the culprit on bad has shown."""
    for name, sentences in story.proofs.items():
        yield f"{name}: {' '.join(sentences)}"


def so_far(story: Story) -> Iterator[str]:
    """What is known before there is a verdict."""
    yield from story.found
    yield "There is no verdict yet."
    if story.hunt.failure:
        yield printable(f"The last session failed: {story.hunt.failure}")
    if story.effect is not None:
        metric = metric_title(story.settings.metric)
        yield f"{metric} of bad is {ratio(story.effect)} of that of good."
    if story.costs.ahead and story.hunt.state == "running":
        for name, commit in story.costs.ahead.in_flight.items():
            yield printable(f"Host {name} is building {commit.short}  {commit.title}")


def plans(case: Case) -> Iterator[str]:
    """The statements with another plan, before any other reason."""
    if case.plans:
        yield plans_sentence(case.plans, case.commit.short)
        yield ""
        yield from indented(plan_lines(case.plans))


def explanation(case: Case) -> Iterator[str]:
    """Why a commit is slower, with its counters beside those of its parents."""
    yield f"Why {case.commit.short}: {case.why}"
    if rows := cells.counters(case):
        yield ""
        yield from indented(table(cells.COUNTERS, rows, right=cells.COUNTERS[1:]))
    for title, rows in cells.function_tables(case):
        yield ""
        yield f"  {title}"
        yield from indented(table(cells.FUNCTIONS, rows, right=cells.FUNCTIONS[2:6]))
    if missing := cells.not_counted(case):
        yield from indented(wrap(f"not counted on this host: {missing}", 96, break_on_hyphens=False))


def suspects(story: Story, inner: int) -> Iterator[str]:
    """The suspects of an unfinished hunt; a verdict lists its own."""
    if story.verdict or not story.suspects:
        return
    yield "Most probable so far"
    yield from indented(table(("", "commit", "date", "subject"), cells.suspects(story), right=("",), width=inner))


def candidates(story: Story, inner: int) -> Iterator[str]:
    """Everything that was built, measured or skipped, oldest first."""
    if not story.candidates:
        return
    head = cells.candidates_head(story)
    yield f"Candidates, oldest first; {head[2]} is relative to {story.settings.good}"
    right = (head[2], *cells.NUMBERS)
    yield from indented(table(head, cells.candidates(story), right=right, width=inner, drop=cells.DISPENSABLE))
    yield from indented([cut(remark, inner) for remark in cells.remarks(story)])


def warnings(story: Story) -> Iterator[str]:
    """The warnings, each with its advice."""
    if story.warnings:
        yield "Warnings"
    for text, advice in story.warnings.items():
        yield f"  {text}"
        if advice:
            yield f"    {advice}"


def ending(story: Story) -> Iterator[str]:
    """The costs, and the commands to repeat and to resume."""
    yield f"Cost: {spent(story)}."
    if story.costs.ahead:
        yield f"Built ahead: {printable(built_ahead(story.costs.ahead))}."
    yield f"To repeat:  {story.again}"
    if not story.verdict or story.suspects:
        yield f"To resume:  {story.go_on}"


def spent(story: Story) -> str:
    """All costs in one sentence."""
    costs = story.costs
    found = cached(costs.hit_rate, costs.remote_rate)
    cache = f" ({found})" if found else ""
    shared = f" and {costs.shared} from the shared builds" if costs.shared else ""
    return (
        f"{count(costs.builds, 'build')}{shared} in {duration(costs.build_seconds)}{cache}, "
        f"{count(costs.runs, 'run')} in {duration(costs.run_seconds)}; {duration(costs.seconds)} in all"
    )


def built_ahead(ahead: BuiltAhead) -> str:
    """How many builds each build host has made, and what was of no use."""
    parts = [f"{count(made, 'build')} on {name}" for name, made in ahead.builds.items()]
    if ahead.unused:
        parts.append(f"{ahead.unused} of them not measured ({duration(ahead.unused_seconds)})")
    if ahead.ended:
        parts.append(f"{ahead.ended} more ended before they were finished ({duration(ahead.ended_seconds)})")
    return ", ".join(parts)


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Lines moved in by two columns."""
    return (f"  {line}" for line in lines)
