"""The screen of a session as lines of text: a pure function of the view, the size and the clock."""

import textwrap
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.events import RunFinished
from perfbisect.core.domain.metrics import shown_unit, shown_value
from perfbisect.core.domain.orders import Purpose, Verdict
from perfbisect.ui.candidates import RECENT, end_of_range, pairs, ratio_lines, strip, table
from perfbisect.ui.session_view import ActiveBuild, ActiveRun, SessionView, minutes_left, within
from perfbisect.wording.glyphs import ASCII, UNICODE, Glyphs, bar, sparkline, writable
from perfbisect.wording.quantities import (
    build_origin,
    chance,
    clock,
    count,
    estimate,
    figure,
    percent,
    ratio,
    slower_than,
)
from perfbisect.wording.text import advised, execution, printable
from perfbisect.wording.verdicts import PHASES, VerdictSentences

SMALLEST = 5  # columns of a progress bar
ENOUGH = 7  # lines of the table that take precedence over empty lines and warnings
WARNINGS = 5  # the latest, on a screen of limited height


@dataclass(frozen=True, slots=True)
class ScreenBlock:
    """Lines that belong together. On a short terminal, blocks of low ``priority`` lose their lines first."""

    lines: list[Text]
    priority: int


def lines(view: SessionView, width: int, height: int | None, now: float, glyphs: Glyphs = UNICODE) -> list[Text]:
    """The screen at ``now`` (epoch seconds): at most ``height`` lines (None: no limit) of at most ``width`` columns."""
    room, table_of = max(10, width - 2), ScreenBlock([], 5)
    warned = ScreenBlock(warnings(view, room, complete=height is None), 3)
    busy = view.ended is None and (view.stands or not view.state.verdict)
    doing = ScreenBlock([*phase(view, room), *in_progress(view, room, now, glyphs)] if busy else [], 9)
    paired = ScreenBlock(latest_pairs(view, room, glyphs), 4)
    trial_rows = [Text(line) for line in ratio_lines(view.trial, room)] if view.trial else []
    choices = () if view.trial else (view.state.chosen, view.state.pairing)
    chosen = " ".join(choice.why for choice in choices if choice and choice.why)
    blocks = [
        ScreenBlock(header(view, room, now, glyphs), 8),
        ScreenBlock(strip(view, room, glyphs), 6),
        ScreenBlock(verdict(view, room), 10),
        doing,
        paired,
        table_of,
        ScreenBlock(belief(view, room, glyphs), 7),
        warned,
        ScreenBlock(folded(chosen, room, "", 3, "dim"), 2),
    ]
    rows, airy = share_out(blocks, len(trial_rows) if view.trial else len(view.rows) + 1, height)
    table_of.lines[:] = trial_rows[:rows] if view.trial else table(view, room, rows - 1) if rows > 1 else []
    return drawn(blocks, width, glyphs, airy=airy)


def drawn(sections: list[ScreenBlock], width: int, glyphs: Glyphs, *, airy: bool) -> list[Text]:
    """The lines of sections, cut to ``width`` columns and written in ``glyphs``; ``airy``: with empty lines between"""
    lines: list[Text] = []
    for section in sections:
        lines += [Text()] if airy and lines and section.lines else []
        lines += section.lines
    for line in lines:
        line.pad_left(1 if line.plain else 0)
        line.truncate(width, overflow="ellipsis")
        line.plain = writable(line.plain, "ascii") if glyphs is ASCII else line.plain
        line.no_wrap = True
    return lines


def share_out(around: list[ScreenBlock], rows: int, height: int | None) -> tuple[int, bool]:
    """The number of lines for a table of ``rows`` lines, and whether empty lines fit between sections.

    If ``height`` is too small, removes lines from the sections ``around`` the table.
    """
    if height is None:
        return rows, True
    fixed = sum(len(section.lines) for section in around)
    gaps = sum(bool(section.lines) for section in around)
    least = min(ENOUGH, rows, height // 2)
    if fixed + gaps + least <= height:
        return height - fixed - gaps, True
    for section in sorted(around, key=lambda section: section.priority):
        while section.lines and fixed > height - least:
            section.lines.pop()
            fixed -= 1
    return height - fixed, False


def header(view: SessionView, room: int, now: float, glyphs: Glyphs) -> list[Text]:
    """Two lines: what is measured and the times; the range and costs of a hunt, or the progress of a trial."""
    hunt, trial, runs = view.hunt, view.trial, view.state.run_count
    if trial:
        title = [trial.name, trial.request.builder, *(work.name for work in trial.request.works[:3]), trial.host.name]
        far = f"{runs:,} of {'about ' * view.expected.open}{count(view.expected.runs, 'run')}"
        width, behind = beside([far], room, glyphs)
        done, todo = bar(runs / view.expected.runs if view.expected.runs else 0.0, width, glyphs)
        second = Text.assemble((done, "cyan"), (todo, "dim"), behind)
    elif hunt:
        title = [view.name, hunt.builder, hunt.workload, ", ".join(facts.name for facts in hunt.hosts)]
        size = [count(hunt.commits, "commit"), count(hunt.possible_culprits, "candidate")]
        size += [count(hunt.merges, "merge")] if hunt.merges else []
        if hunt.of_merge_base:
            size = ["good is not an ancestor of bad", "comparison with the merge base"]
        ends = f"{end_of_range(hunt.good)} {glyphs.arrow} {end_of_range(hunt.bad)}"
        skipped = sum(row.skip is not None for row in view.rows.values())
        cost = [
            count(view.state.build_count, "build"),
            count(runs, "run"),
            *([f"{skipped} skipped"] if skipped else []),
        ]
        second = both_ends([ends, *size], cost, room, glyphs, "dim", "dim")
    else:
        return [Text("preparing the hunt")]
    return [both_ends(title, times(view, now), room, glyphs, "bold", ""), second]


def times(view: SessionView, now: float) -> list[str]:
    """The elapsed time and, until the verdict, the estimated time left."""
    until, minutes = view.ended or now, minutes_left(view, now)
    elapsed = f"{clock(until - (view.began or until))} elapsed"
    if view.ended is not None or view.state.verdict is not None:
        return [elapsed]
    return [elapsed, "estimating" if minutes is None else f"{estimate(minutes)} left"]


def both_ends(left: list[str], right: list[str], room: int, glyphs: Glyphs, begin: str, end: str) -> Text:
    """One line with the facts ``left`` and ``right`` at its ends; facts of ``left`` are dropped first."""
    behind = facts(right, room, glyphs)
    front = facts(left, room - cell_len(behind) - 2, glyphs)
    return Text.assemble((front, begin), " " * (room - cell_len(front) - cell_len(behind)), (behind, end))


def facts(parts: list[str], room: int, glyphs: Glyphs) -> str:
    """The first of ``parts`` that fit into ``room`` columns, with dots between them."""
    line = ""
    for part in parts:
        longer = f"{line} {glyphs.dot} {part}" if line else part
        if cell_len(longer) > room:
            break
        line = longer
    return line


def phase(view: SessionView, room: int) -> list[Text]:
    """A line with the purpose of the present orders and the progress; none before the first order."""
    if view.decided:
        parts = count(len(view.state.explanation_events), "part")
        reason = f"measuring the reason, {parts} so far; Ctrl-C stops that, the verdict is final"
        return folded(reason if view.stands else "measuring the named commits again", room, "", 2)
    if not view.phase or view.hunt is None:
        return []
    now, posterior = view.phase, view.state.belief
    done, about = view.state.run_count - now.began, max(now.until, view.state.run_count) - now.began
    far = f"{done} of about {count(about, 'run')}"
    if now.order.purpose is Purpose.SEARCH and posterior is not None:
        far = f"among {within(posterior, 0.95):,} of {count(view.hunt.possible_culprits, 'candidate')}"
    return [Text(f"{PHASES[now.order.purpose, now.order.fresh]}: {far}")]


def in_progress(view: SessionView, room: int, now: float, glyphs: Glyphs) -> list[Text]:
    """What each host is busy with: always two lines for a host, and one line for a build host, so that no line jumps."""
    names, build_hosts = view.hosts, view.state.build_hosts
    if not names:
        return activity(view, view.now, room, now, glyphs)
    lines: list[Text] = []
    wide = max(map(cell_len, (*names, *build_hosts))) + 2
    for name in names:
        title, line = activity(view, view.busy.get(name), room - wide, now, glyphs)
        lines += [Text.assemble(name.ljust(wide), title), Text.assemble(" " * wide, line)]
    return lines + [
        Text.assemble(name.ljust(wide), ahead_line(view, view.busy.get(name), room - wide, now, glyphs))
        for name in build_hosts
    ]


def ahead_line(view: SessionView, doing: ActiveBuild | ActiveRun | None, room: int, now: float, glyphs: Glyphs) -> Text:
    """What a build host is busy with, in one line."""
    if not isinstance(doing, ActiveBuild):
        return Text("free", "dim")
    word, (short, _) = "built     " if doing.finished else "building  ", view.title(doing)
    taken_columns = cell_len(word) + cell_len(short) + 2
    return Text.assemble(word, (short, "bold"), "  ", build_line(view, doing, room - taken_columns, now, glyphs))


def activity(
    view: SessionView, doing: ActiveBuild | ActiveRun | None, room: int, now: float, glyphs: Glyphs
) -> list[Text]:
    """Two lines: what a host is busy with, and its progress."""
    match doing:
        case ActiveBuild() as build:
            word = "built     " if build.finished else "building  "
            line = build_line(view, build, room, now, glyphs)
        case ActiveRun() as run:
            word = f"{'measured' if run.finished else 'measuring'}  "
            if run.finished and run.number == run.of and view.builds_ahead:
                word = "waiting for a build, after  "
            line = run_line(view, run, room, now, glyphs)
        case None:
            idle = "waiting for a build" if view.builds_ahead else "deciding" if view.rows else "starting"
            idle = "preparing" if view.trial else idle
            return [Text(idle, "dim"), Text()]
    short, subject = view.title(doing)
    return [Text.assemble(word, (short, "bold"), "  ", subject), line]


def build_line(view: SessionView, build: ActiveBuild, room: int, now: float, glyphs: Glyphs) -> Text:
    """The progress of a build: a bar, its time, steps and stage."""
    row = view.rows.get(build.candidate)
    if build.finished and row is not None and row.builds:
        latest = row.builds[-1]
        first, *details = build_origin(latest)
        parts = [first if latest.reused else f"in {first}", *details]
        fraction = 1.0
    elif build.finished:
        parts, fraction = [], 1.0
    else:
        steps = f"{build.done:,} of {build.total:,}" if build.total else ""
        fraction = build.done / build.total if build.total else 0.0
        parts = [part for part in (clock(now - build.since), steps, build.stage) if part]
    size, behind = beside(parts, room, glyphs)
    done, todo = bar(fraction, size, glyphs)
    return Text.assemble((done, "cyan"), (todo, "dim"), behind)


def beside(parts: list[str], room: int, glyphs: Glyphs) -> tuple[int, str]:
    """The width of a bar, and the text behind it: the first of ``parts`` that fit. Only long texts change the width."""
    behind = facts(parts, room - SMALLEST - 2, glyphs)
    return max(SMALLEST, min(60, room - max(36, cell_len(behind) + 2))), f"  {behind}"


def run_line(view: SessionView, run: ActiveRun, room: int, now: float, glyphs: Glyphs) -> Text:
    """The rates of a run so far as a sparkline from 0 to the highest rate of the hunt, and the latest rate."""
    passed = max(0.0, now - run.since)
    if run.seconds:  # planned
        passed = run.seconds if run.finished else min(run.seconds, passed)
    row = view.rows.get(run.candidate)
    runs = [recorded.facts for recorded in view.state.runs[-1:]] if view.trial else row.runs if row else ()
    if run.finished and runs:
        latest = runs[-1]
        metric = view.metric_of(latest)
        text = f"{figure(shown_value(latest, metric))} {printable(shown_unit(metric, latest))}"
        if latest.slower_than:
            text = slower_than(latest.slower_than, latest.seconds)
    elif run.execution:
        text = execution(run.execution)
    elif run.samples:
        text = f"{figure(run.samples[-1])} QPS"
    else:
        text = "running" if not run.seconds else "warming up" if passed < run.seconds else "finishing"
    of = f" of {run.seconds:.0f}" if run.seconds else ""
    size, behind = beside([text, f"{passed:.0f}{of} s"], room, glyphs)
    drawn = sparkline(run.samples, view.top, size, glyphs)
    return Text.assemble((drawn, "cyan"), (" " * (size - len(drawn))), behind)


def latest_pairs(view: SessionView, room: int, glyphs: Glyphs) -> list[Text]:
    """The latest pairs, until there is a verdict or the session has ended."""
    state = view.state
    if state.verdict or view.ended:
        return []
    metric = state.pairing.metric_of_paired_runs(view.metric) if state.pairing else view.metric
    if view.trial:
        trial_runs = state.runs[-RECENT:]
        names = {run.facts.commit: printable(state.request.subjects[run.subject].name) for run in trial_runs}
        return pairs([run.facts for run in trial_runs], metric, names.__getitem__, room, glyphs)
    runs = [event.facts for _, event in state.log[-RECENT:] if isinstance(event, RunFinished)]
    return pairs(runs, metric, lambda sha: state.facts_of(sha).commit.short, room, glyphs)


def belief(view: SessionView, room: int, glyphs: Glyphs) -> list[Text]:
    """Two lines: the leader and its probability; the ratio of the ends and the noise. After the verdict the second alone."""
    posterior = view.state.belief
    if posterior is None or view.hunt is None:
        return []
    first = Text(view.no_leader)
    if view.leader is not None:
        candidate, share = view.leader
        commit = view.commit(candidate)
        first = Text.assemble("most probable  ", (f"{commit.short}  {chance(share)}", "bold"), "  ", commit.subject)
    parts = [view.layouts] if view.layouts else []
    if (effect := view.ratio(len(view.state.commits) - 1)) is not None:
        parts.append(f"bad is {ratio(effect)} of good")
    if posterior.change < 0.95:
        parts.append(f"{chance(posterior.change)} that the ends differ")
    parts += [f"noise {percent(posterior.noise)}", f"95 % credible set: {count(within(posterior, 0.95), 'candidate')}"]
    second = Text(facts(parts, room, glyphs), "dim")
    return [second] if view.state.verdict else [first, second]


def warnings(view: SessionView, room: int, complete: bool) -> list[Text]:
    """The forecast and the warnings, folded; unless ``complete`` the latest warnings, each cut to two lines."""
    first = folded(view.foreseen, room, "", 2, "dim") if view.foreseen and view.state.verdict is None else ()
    texts = [advised(text, advice) for text, advice in view.state.warnings.items()]
    texts += [printable(text) for text in (view.state.belief.warnings if view.state.belief is not None else ())]
    texts = texts if complete else texts[-WARNINGS:]
    return [
        *first,
        *(line for text in texts for line in folded(f"! {text}", room, "  ", 9 if complete else 2, "yellow")),
    ]


def verdict_sentences(view: SessionView, verdict: Verdict) -> tuple[str, ...]:
    """The verdict in sentences, and the remedy that made commits build."""
    return *VerdictSentences(view.state, view.commit).sentences(verdict), *view.state.remedy


def verdict(view: SessionView, room: int) -> list[Text]:
    """The verdict and its reason in sentences, and the command that shows the report; none before the verdict."""
    if view.state.verdict is None or view.hunt is None:
        return []
    lines: list[Text] = []
    for position, text in enumerate(verdict_sentences(view, view.state.verdict)):
        begin = "    " if text.startswith("  ") else ""  # of further lines
        lines += folded(text, room, begin, 9, "" if position else "bold")
    return lines + folded(view.why, room, "", 9) + folded(view.report_hint, room, "", 9, "dim")


def folded(text: str, room: int, begin: str, limit: int, style: str = "") -> list[Text]:
    """``text`` in at most ``limit`` lines of at most ``room`` columns; … marks a cut."""
    start = text[: len(text) - len(text.lstrip())]
    held = text.strip().replace(" %", "\N{NO-BREAK SPACE}%")
    shape = textwrap.TextWrapper(room, start, begin, max_lines=limit, placeholder=" …")
    return [Text(line.replace("\N{NO-BREAK SPACE}%", " %"), style) for line in shape.wrap(held)]
