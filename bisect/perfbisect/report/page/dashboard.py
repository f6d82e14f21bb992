"""The start page of `bisect serve`, one screen: what runs, the culprits of the last weeks, the lines of what is watched."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup

from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.stats.release_series import SpeedLine, is_worse, lines_of
from perfbisect.core.stats.watched_branch import Branch
from perfbisect.report.document import Row, Table, row
from perfbisect.report.page.pages import CellOf, listing, render
from perfbisect.report.page.svg import Scale, chart, element, percent, upright
from perfbisect.report.series import series_of, spanned
from perfbisect.store.listing import NAMED, SessionSummary
from perfbisect.wording.quantities import MISSING, chance, change, count, decimals, moment

WEEKS = 4
WEEK = 7 * 86400.0  # seconds
RUNNING, CULPRITS, LINES = 6, 10, 6  # at most: what a screen holds
HEIGHT = 40.0  # of a line
LATEST = 120  # points of a line at most


@dataclass(frozen=True, slots=True)
class Watched:
    """The line of a branch or a series: ratios to its first point, oldest first, None for a gap."""

    title: str
    points: tuple[float | None, ...]
    steps: tuple[tuple[int, bool], ...]  # the first point with it, and whether it is for the worse
    link: str  # to a page that has more

    @property
    def latest(self) -> str:
        """Its last ratio."""
        return next((f"×{decimals(ratio, 3)}" for ratio in reversed(self.points) if ratio is not None), MISSING)

    def draw(self) -> Markup:
        """Its latest points, and a vertical line before each step."""
        points = self.points[-LATEST:]
        first, wide = len(self.points) - len(points), max(1, len(points) - 1)
        known = [(place, ratio) for place, ratio in enumerate(points) if ratio]
        low, high = spanned([ratio for _, ratio in known] or [1.0])
        scale = Scale(low, high, logarithmic=True)
        spots = [(percent(place / wide), 3 + (HEIGHT - 6) * (1 - scale(ratio))) for place, ratio in known]
        parts = [element("line", x1=a, y1=b, x2=c, y2=d, class_="line") for (a, b), (c, d) in pairwise(spots)]
        parts += [element("circle", cx=x, cy=y, r=2.5) for x, y in spots[-1:]]
        steps = [(place - first - 0.5, "bad" if worse else "good") for place, worse in self.steps if place > first]
        parts += [upright(place / wide, HEIGHT, f"step {tone}") for place, tone in steps]
        worse = sum(worse for _, worse in self.steps)
        label = f"{self.title}: {self.latest} of the first, {count(worse, 'step')} for the worse"
        return chart(HEIGHT, f"{label}, {len(self.steps) - worse} for the better", *parts, class_="series spark")


def watched_of(trials: Sequence[SessionState], link: str) -> list[Watched]:
    """The lines of a series of releases, or of the nights of a branch, oldest first; ``link`` leads to the page of the last one."""
    request = trials[-1].request
    if text := request.branch:
        lines: Sequence[SpeedLine] = Branch.of([each for each in trials if each.request.works == request.works]).lines
    else:
        lines, text = lines_of(trials[-1]), series_of(trials[-1]).text
    found = []
    for line in lines:
        steps = tuple((step.after, is_worse(step, request.metric)) for step in line.steps)
        found.append(Watched(f"{line.work}, {text}", line.ratios, steps, link))
    return found


def dashboard_page(sessions: Iterable[SessionSummary], lines: Sequence[Watched], cell: CellOf, now: float) -> str:
    """The page; ``now`` is in seconds since the epoch."""
    every = sorted(sessions, key=lambda one: one.started, reverse=True)
    running = [one for one in every if one.state == "running"]
    ended = [one for one in every if one.state in NAMED]
    named = [one for one in ended if one.started > now - WEEKS * WEEK]
    runs = f"{count(len(running), 'session')} {'runs' if len(running) == 1 else 'run'}"
    return render(
        "dashboard.html",
        headline=f"{runs}, {count(len(named), 'hunt')} of the last {WEEKS} weeks named a culprit",
        now=now,
        weeks=WEEKS,
        total=len(every),
        running=(listing(running[:RUNNING], cell), len(running) - RUNNING),
        culprits=(culprits(named[:CULPRITS], cell), len(named) - CULPRITS),
        lines=lines[:LINES],
    )


def culprits(named: Sequence[SessionSummary], cell: CellOf) -> Table:
    """The first commits that verdicts name."""
    rows = []
    for one in named:
        effect = MISSING if one.ratio is None else f"{one.metric}: {change(one.ratio)}"
        day, *_ = moment(one.started).split()
        where = " ".join((one.builder, *one.workloads))
        cells = row(one.subject, where, effect, chance(one.probability), day, cell(one).text).cells
        rows.append(Row((replace(cell(one), text=(one.culprit or MISSING)[:10]), *cells)))
    head = ("commit", "subject", "measured", "effect", "sure", "day", "hunt")
    return Table(head, tuple(rows), ("sure",), name="culprits")
