"""The page of one hunt: what its template shows, as plain values and drawings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import Interval
from perfbisect.core.inference.classification import Classification
from perfbisect.report import cells
from perfbisect.report.command_line import command_on
from perfbisect.report.content import Candidate, Story
from perfbisect.report.page import intervals
from perfbisect.report.page.case import CasePage, DiffOf, case_page
from perfbisect.report.page.data import HuntData
from perfbisect.report.page.pages import render
from perfbisect.report.page.posterior import Range, posterior
from perfbisect.report.page.svg import Scale
from perfbisect.report.terminal import extent, so_far
from perfbisect.wording.quantities import MISSING, cached, chance, count, duration, middle, percent, ratio
from perfbisect.wording.text import cited, metric_title
from perfbisect.wording.verdicts import classification_name, effect

TONES = {  # of a classification: the class of its colour
    Classification.BASELINE: "good",
    Classification.GOOD: "good",
    Classification.BAD: "bad",
    Classification.CULPRIT: "culprit",
    Classification.SKIPPED: "skipped",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the head of the page."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Rung:
    """One measured commit."""

    commit: Commit
    date: str
    plot: Markup
    ratio: str
    between: str
    runs: str
    state: str
    tone: str


@dataclass(frozen=True, slots=True)
class HuntPage:
    """The values of the template ``hunt.html``."""

    story: Story
    headline: str  # the verdict in one sentence
    reason: str  # why, in one sentence; empty where no commit is named
    verdict: tuple[str, ...]
    tiles: tuple[Tile, ...]
    cases: tuple[CasePage, ...]
    suspects: Sequence[cells.Row]
    metric: str
    rungs: tuple[Rung, ...]
    ladder_axis: Markup
    remarks: tuple[str, ...]
    posterior: Markup | None
    range_note: str
    ends: tuple[str, str]
    extent: str
    settings: tuple[tuple[str, str], ...]
    costs: tuple[Tile, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def sections(self) -> Iterator[tuple[str, str]]:
        """The anchors of what the page contains, with their titles."""
        for one in self.cases[:1]:
            yield from one.sections
        present = {
            "suspects": ("most probable", self.suspects),
            "ladder": ("commits", self.rungs),
            "range": ("range", self.posterior),
        }
        yield from ((name, title) for name, (title, there) in present.items() if there)
        yield from (("conditions", "hosts"), ("costs", "costs"), ("repeat", "repeat it"))


def hunt_page(data: HuntData, *, diff_of: DiffOf, history: Path | None, index: str = "") -> str:
    """The page of a hunt; ``diff_of`` gives the diff of a culprit and a parent of it."""
    story = data.story
    head, metric = headline(story), metric_title(story.settings.metric)
    scale = intervals.scale_of([one.ratio for one in story.candidates if one.ratio])
    page = HuntPage(
        story=story,
        headline=head,
        reason=story.cases[0].why if len(story.cases) == 1 else "",
        verdict=tuple(story.verdict or so_far(story))[1:],
        tiles=tuple(tiles(story)),
        cases=tuple(case_page(data, place, diff_of) for place in range(len(story.cases))),
        suspects=() if story.verdict else cells.suspects(story),
        metric=metric,
        rungs=tuple(rung(one, scale) for one in story.candidates if not one.left_out),
        ladder_axis=intervals.axis(scale, f"ratio of {metric}"),
        remarks=tuple(cells.remarks(story)),
        posterior=narrowed(data),
        range_note=f"{count(story.hunt.candidates, 'candidate')} after {story.settings.good}, oldest first",
        ends=(story.settings.good, story.settings.bad),
        extent=extent(story),
        settings=settings(story),
        costs=tuple(costs(story)),
        commands=tuple(commands(story, history)),
    )
    return render("hunt.html", page=page, index=index)


def headline(story: Story) -> str:
    """The verdict in one sentence."""
    if len(story.cases) == 1 and story.hunt.state == "found":
        [case] = story.cases
        what = effect(case.ratio, story.settings.metric)
        what += "" if case.ratio.bound else f" in {metric_title(story.settings.metric)}"
        text = f"The culprit is {cited(case.commit)}: {what}, {chance(case.probability)} sure."
    else:
        text = (story.verdict or tuple(so_far(story)))[0]
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def tiles(story: Story) -> Iterator[Tile]:
    """The figures that are asked for first."""
    metric = metric_title(story.settings.metric)
    if len(story.cases) == 1:
        [case] = story.cases
        yield Tile(metric, signed(case.ratio), ratio(case.ratio), tone(case.ratio, story.settings.metric))
        yield Tile("sure", chance(case.probability), "that it is this commit")
        if case.explanation.counters and (row := case.explanation.counters[0]).moved:
            yield Tile(row.name, f"×{row.ratio.middle:.2f}", "what moved furthest beyond its noise")
    elif story.effect is not None:
        yield Tile(metric, signed(story.effect), f"bad against good, {ratio(story.effect)}")
    yield Tile(
        "found in",
        duration(story.costs.seconds),
        f"{count(story.costs.builds, 'build')}, {count(story.costs.runs, 'run')}",
    )


def signed(found: Interval) -> str:
    """A ratio as a signed percentage, or as a factor where it is large: −28 %, ×12."""
    if found.bound:
        return middle(found)
    if not 1 / 3 < found.middle < 3:
        return f"×{found.middle:.3g}"
    return f"{'+' if found.middle >= 1 else '−'}{percent(abs(found.middle - 1))}"


def tone(found: Interval, metric: str) -> str:
    """ "worse" or "better" for a difference that the interval shows."""
    if found.low <= 1 <= found.high:
        return ""
    return "better" if (found.low > 1) is find_metric(metric).higher_is_better else "worse"


def rung(one: Candidate, scale: Scale) -> Rung:
    """The row of a commit."""
    shown, span = cells.ratio_cells(one)
    colour = TONES.get(one.state, "unclear")
    own = Interval(1.0, 1.0, 1.0) if one.state is Classification.BASELINE else one.ratio
    return Rung(
        commit=one.commit,
        date=one.commit.date,
        plot=intervals.row(own, scale, colour),
        ratio=shown,
        between=span,
        runs=str(one.runs) if one.runs else MISSING,
        state=classification_name(one.state),
        tone=colour,
    )


def narrowed(data: HuntData) -> Markup | None:
    """How the search narrowed the range; None before it has begun."""
    if not data.course:
        return None
    tested = {
        one.node: (one.commit, TONES.get(one.state, "unclear"))
        for one in data.story.candidates
        if one.node is not None and not one.left_out
    }
    return posterior(Range(len(data.course[-1].culprit), tested), data.course)


def settings(story: Story) -> tuple[tuple[str, str], ...]:
    """What was hunted and how."""
    given = story.settings
    rows = (
        ("repository", given.repository),
        ("builder", f"{given.builder}, {given.variant}"),
        ("workload", given.workload),
        ("metric", metric_title(given.metric)),
        ("chosen", story.why_metric),
        ("changed", ", ".join(f"{name} {value}" for name, value in given.overrides.items())),
        ("together", story.together),
        ("command", given.quick.run if given.quick else ""),
        *(("patch", patch) for patch in cells.patches(story)),
        ("left out", cells.left_out(story)),
    )
    return tuple(row for row in rows if row[1])


def costs(story: Story) -> Iterator[Tile]:
    """What the hunt has cost."""
    spent = story.costs
    shared = f"{spent.shared} more from the shared builds" if spent.shared else ""
    yield Tile(
        "builds", str(spent.builds), "; ".join(filter(None, (cached(spent.hit_rate, spent.remote_rate), shared)))
    )
    yield Tile("building", duration(spent.build_seconds))
    if spent.ahead:
        builders = ", ".join(f"{made} on {name}" for name, made in spent.ahead.builds.items())
        useless = spent.ahead.unused + spent.ahead.ended
        lost = duration(spent.ahead.unused_seconds + spent.ahead.ended_seconds)
        yield Tile("built ahead", str(sum(spent.ahead.builds.values())), builders)
        yield Tile("of no use", str(useless), f"{lost} of building" if useless else "")
    yield Tile("runs", str(spent.runs))
    yield Tile("running", duration(spent.run_seconds), "starts and warm-up included")
    yield Tile("in all", duration(spent.seconds))


def commands(story: Story, history: Path | None) -> Iterator[tuple[str, str]]:
    """The commands that repeat, resume and prove the hunt."""
    yield "The hunt", story.again
    if not story.verdict or story.suspects:
        yield "Resume it", story.go_on
    if story.cases:
        yield "Prove it: measure bad without the culprit", command_on("prove", str(story.hunt.id), history)
    yield "This report", command_on("report", str(story.hunt.id), history)
