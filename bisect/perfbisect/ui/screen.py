"""Renders the live screen of a session as lines of text. The lines depend only on the view, the size of the terminal,
and the time."""

import textwrap
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.events import RunFinished
from perfbisect.core.domain.metrics import shown_unit, shown_value
from perfbisect.core.domain.orders import Purpose, Verdict
from perfbisect.ui.candidates import RECENT, axis_lines, candidate_table, pair_lines, ratio_lines, short_revision
from perfbisect.ui.session_view import Activity, LatestBuild, LatestRun, SessionView, credible_set_size, minutes_left
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
    stopped_run,
)
from perfbisect.wording.text import advised, counted_execution_text, printable
from perfbisect.wording.verdicts import PHASES, VerdictSentences

SMALLEST = 5  # fewest columns of a progress bar
ENOUGH = 7  # lines of the table that take precedence over empty lines and warnings
WARNINGS = 5  # number of the latest warnings that a screen shows, because its height is limited


@dataclass(frozen=True, slots=True)
class ScreenBlock:
    """Successive lines of the screen. If the terminal has too few lines, lines of blocks with a low ``priority`` are
    removed first."""

    lines: list[Text]
    priority: int


def screen_lines(view: SessionView, width: int, height: int | None, now: float, glyphs: Glyphs = UNICODE) -> list[Text]:
    """The lines of the screen at the time ``now`` (seconds since 1970): at most ``height`` lines (None: no limit) of at
    most ``width`` columns."""
    room, table_of = max(10, width - 2), ScreenBlock([], 5)
    warned = ScreenBlock(forecast_and_warning_lines(view, room, complete=height is None), 3)
    busy = view.ended is None and (view.is_verdict_final or not view.state.verdict)
    doing = [*purpose_and_progress_line(view, room), *activity_lines(view, room, now, glyphs)] if busy else []
    paired = ScreenBlock(latest_pair_lines(view, room, glyphs), 4)
    trial = view.trial_state
    trial_rows = [Text(line) for line in ratio_lines(trial, room)] if trial else []
    choices = () if trial else (view.state.chosen, view.state.pairing)
    chosen = " ".join(choice.why for choice in choices if choice and choice.why)
    blocks = [
        ScreenBlock(header_lines(view, room, now, glyphs), 8),
        ScreenBlock(axis_lines(view, room, glyphs), 6),
        ScreenBlock(verdict_lines(view, room), 10),
        ScreenBlock(doing, 9),
        paired,
        table_of,
        ScreenBlock(culprit_and_ratio_lines(view, room, glyphs), 7),
        warned,
        ScreenBlock(folded_lines(chosen, room, "", 3, "dim"), 2),
    ]
    rows, airy = make_room_for_table(blocks, len(trial_rows) if trial else len(view.tested) + 1, height)
    table_of.lines[:] = trial_rows[:rows] if trial else candidate_table(view, room, rows - 1) if rows > 1 else []
    return fitted_lines(blocks, width, glyphs, empty_lines=airy)


def fitted_lines(blocks: list[ScreenBlock], width: int, glyphs: Glyphs, *, empty_lines: bool) -> list[Text]:
    """The lines of ``blocks``, cut to ``width`` columns. If ``empty_lines`` is true, an empty line separates blocks."""
    lines: list[Text] = []
    for section in blocks:
        lines += [Text()] if empty_lines and lines and section.lines else []
        lines += section.lines
    for line in lines:
        line.pad_left(1 if line.plain else 0)
        line.truncate(width, overflow="ellipsis")
        line.plain = writable(line.plain, "ascii") if glyphs is ASCII else line.plain
        line.no_wrap = True
    return lines


def make_room_for_table(other_blocks: list[ScreenBlock], table_lines: int, height: int | None) -> tuple[int, bool]:
    """The number of lines that the screen can show of a table of ``table_lines`` lines, and whether there is space for
    empty lines between blocks.

    If ``height`` is too small for all lines, this function removes lines from ``other_blocks``.
    """
    if height is None:
        return table_lines, True
    fixed = sum(len(section.lines) for section in other_blocks)
    gaps = sum(bool(section.lines) for section in other_blocks)
    least = min(ENOUGH, table_lines, height // 2)
    if fixed + gaps + least <= height:
        return height - fixed - gaps, True
    for section in sorted(other_blocks, key=lambda section: section.priority):
        while section.lines and fixed > height - least:
            section.lines.pop()
            fixed -= 1
    return height - fixed, False


def header_lines(view: SessionView, width: int, now: float, glyphs: Glyphs) -> list[Text]:
    """The first two lines of the screen: the name of what is measured, and the times; then the range and the costs of a
    hunt, or the progress of a trial.
    """
    hunt, trial, runs = view.hunt_start, view.trial_state, view.state.run_count
    if trial:
        title = [trial.name, trial.request.builder, *(work.name for work in trial.request.works[:3]), trial.host.name]
        far = f"{runs:,} of {'about ' * view.expected_runs.may_change}{count(view.expected_runs.runs, 'run')}"
        columns, behind = bar_width_and_text([far], width, glyphs)
        done, todo = bar(runs / view.expected_runs.runs if view.expected_runs.runs else 0.0, columns, glyphs)
        second = Text.assemble((done, "cyan"), (todo, "dim"), behind)
    elif hunt:
        title = [view.name, hunt.builder, hunt.workload, ", ".join(facts.name for facts in hunt.hosts)]
        size = [count(hunt.commits, "commit"), count(hunt.possible_culprits, "candidate")]
        size += [count(hunt.merges, "merge")] if hunt.merges else []
        if hunt.of_merge_base:
            size = ["good is not an ancestor of bad", "comparison with the merge base"]
        ends = f"{short_revision(hunt.good)} {glyphs.arrow} {short_revision(hunt.bad)}"
        skipped = sum(row.skip is not None for row in view.tested.values())
        cost = [count(view.state.build_count, "build"), count(runs, "run")]
        cost += [f"{skipped} skipped"] if skipped else []
        second = justified_line([ends, *size], cost, width, glyphs, "dim", "dim")
    else:
        return [Text("preparing the hunt")]
    return [justified_line(title, elapsed_and_left(view, now), width, glyphs, "bold", ""), second]


def elapsed_and_left(view: SessionView, now: float) -> list[str]:
    """The elapsed time, and before the verdict the estimated remaining time."""
    until, minutes = view.ended or now, minutes_left(view, now)
    elapsed = f"{clock(until - (view.began or until))} elapsed"
    if view.ended is not None or view.state.verdict is not None:
        return [elapsed]
    return [elapsed, "estimating" if minutes is None else f"{estimate(minutes)} left"]


def justified_line(left: list[str], right: list[str], width: int, glyphs: Glyphs, begin: str, end: str) -> Text:
    """A line with the texts ``left`` at its left end and the texts ``right`` at its right end. If the line is too long,
    texts of ``left`` are omitted first.
    """
    behind = joined_facts(right, width, glyphs)
    front = joined_facts(left, width - cell_len(behind) - 2, glyphs)
    return Text.assemble((front, begin), " " * (width - cell_len(front) - cell_len(behind)), (behind, end))


def joined_facts(parts: list[str], width: int, glyphs: Glyphs) -> str:
    """As many of the texts ``parts`` as fit into ``width`` columns, beginning with the first text, with dots between
    them."""
    line = ""
    for part in parts:
        longer = f"{line} {glyphs.dot} {part}" if line else part
        if cell_len(longer) > width:
            break
        line = longer
    return line


def purpose_and_progress_line(view: SessionView, width: int) -> list[Text]:
    """A line with the purpose and the progress of the work orders that hosts carry out now; no line before the first
    work order."""
    if view.search_verdict:
        parts = count(len(view.state.explanation_events), "part")
        reason = f"measuring the reason, {parts} so far; the verdict is final, and Ctrl-C stops only this measurement"
        return folded_lines(reason if view.is_verdict_final else "measuring the named commits again", width, "", 2)
    if not view.order_group or view.hunt_start is None:
        return []
    now, posterior = view.order_group, view.state.belief
    done, about = view.state.run_count - now.runs_before, max(now.runs_after, view.state.run_count) - now.runs_before
    far = f"{done} of about {count(about, 'run')}"
    if now.latest_order.purpose is Purpose.SEARCH and posterior is not None:
        far = f"among {credible_set_size(posterior, 0.95):,} of {count(view.hunt_start.possible_culprits, 'candidate')}"
    return [Text(f"{PHASES[now.latest_order.purpose, now.latest_order.fresh]}: {far}")]


def activity_lines(view: SessionView, width: int, now: float, glyphs: Glyphs) -> list[Text]:
    """The lines that show what each host does now: always two lines for a host and one line for a build host, so that
    lines do not move on the screen.
    """
    names, build_hosts = view.measuring_hosts, view.state.build_hosts
    if not names:
        return host_activity_lines(view, view.latest_activity, width, now, glyphs)
    lines: list[Text] = []
    wide = max(map(cell_len, (*names, *build_hosts))) + 2
    for name in names:
        title, line = host_activity_lines(view, view.activity_by_host.get(name), width - wide, now, glyphs)
        lines += [Text.assemble(name.ljust(wide), title), Text.assemble(" " * wide, line)]
    for name in build_hosts:
        line = build_host_line(view, view.activity_by_host.get(name), width - wide, now, glyphs)
        lines.append(Text.assemble(name.ljust(wide), line))
    return lines


def build_host_line(view: SessionView, activity: Activity | None, width: int, now: float, glyphs: Glyphs) -> Text:
    """A line that shows what a build host does now."""
    if not isinstance(activity, LatestBuild):
        return Text("free", "dim")
    word, (short, _) = "built     " if activity.is_finished else "building  ", view.activity_title(activity)
    taken_columns = cell_len(word) + cell_len(short) + 2
    return Text.assemble(word, (short, "bold"), "  ", build_line(view, activity, width - taken_columns, now, glyphs))


def host_activity_lines(
    view: SessionView, activity: Activity | None, width: int, now: float, glyphs: Glyphs
) -> list[Text]:
    """Two lines: what a host does now, and the progress of this activity."""
    match activity:
        case LatestBuild() as build:
            word = "built     " if build.is_finished else "building  "
            line = build_line(view, build, width, now, glyphs)
        case LatestRun() as run:
            word = f"{'measured' if run.is_finished else 'measuring'}  "
            if run.is_finished and run.number == run.runs_of_order and view.builds_on_build_hosts:
                word = "waiting for a build, after  "
            line = rate_over_time_line(view, run, width, now, glyphs)
        case None:
            idle = "waiting for a build" if view.builds_on_build_hosts else "deciding" if view.tested else "starting"
            idle = "preparing" if view.trial_state else idle
            return [Text(idle, "dim"), Text()]
    short, subject = view.activity_title(activity)
    return [Text.assemble(word, (short, "bold"), "  ", subject), line]


def build_line(view: SessionView, build: LatestBuild, width: int, now: float, glyphs: Glyphs) -> Text:
    """A line with the progress of a build: a bar, the elapsed time, the number of steps and the stage."""
    row = view.tested.get(build.candidate)
    if build.is_finished and row is not None and row.builds:
        latest = row.builds[-1]
        first, *details = build_origin(latest)
        parts = [first if latest.reused else f"in {first}", *details]
        fraction = 1.0
    elif build.is_finished:
        parts, fraction = [], 1.0
    else:
        steps = f"{build.done_steps:,} of {build.total_steps:,}" if build.total_steps else ""
        fraction = build.done_steps / build.total_steps if build.total_steps else 0.0
        parts = [part for part in (clock(now - build.since), steps, build.stage) if part]
    size, behind = bar_width_and_text(parts, width, glyphs)
    done, todo = bar(fraction, size, glyphs)
    return Text.assemble((done, "cyan"), (todo, "dim"), behind)


def bar_width_and_text(parts: list[str], width: int, glyphs: Glyphs) -> tuple[int, str]:
    """The width of a progress bar, and the text to its right: as many of ``parts`` as fit, beginning with the first.
    The bar becomes shorter only for a long text, so that its width seldom changes.
    """
    behind = joined_facts(parts, width - SMALLEST - 2, glyphs)
    return max(SMALLEST, min(60, width - max(36, cell_len(behind) + 2))), f"  {behind}"


def rate_over_time_line(view: SessionView, run: LatestRun, width: int, now: float, glyphs: Glyphs) -> Text:
    """A line with the present run's rate over time as a sparkline, and the latest rate. The scale of the sparkline is
    from 0 to the highest rate in the hunt.
    """
    passed = max(0.0, now - run.since)
    if run.planned_seconds:  # the bar ends at the planned duration
        passed = run.planned_seconds if run.is_finished else min(run.planned_seconds, passed)
    row = view.tested.get(run.candidate)
    runs = [recorded.facts for recorded in view.state.runs[-1:]] if view.trial_state else row.runs if row else ()
    if run.is_finished and runs:
        latest = runs[-1]
        metric = view.shown_metric_of(latest)
        text = f"{figure(shown_value(latest, metric))} {printable(shown_unit(metric, latest))}"
        if latest.slower_than:
            text = stopped_run(latest.slower_than, latest.seconds)
    elif run.execution:
        text = counted_execution_text(run.execution)
    elif run.samples:
        text = f"{figure(run.samples[-1])} QPS"
    else:
        text = "running" if not run.planned_seconds else "warming up" if passed < run.planned_seconds else "finishing"
    of = f" of {run.planned_seconds:.0f}" if run.planned_seconds else ""
    size, behind = bar_width_and_text([text, f"{passed:.0f}{of} s"], width, glyphs)
    drawn = sparkline(run.samples, view.highest_rate, size, glyphs)
    return Text.assemble((drawn, "cyan"), (" " * (size - len(drawn))), behind)


def latest_pair_lines(view: SessionView, width: int, glyphs: Glyphs) -> list[Text]:
    """Lines with the latest pairs of runs; no lines after the verdict or the end of the session."""
    state = view.state
    if state.verdict or view.ended:
        return []
    metric = state.pairing.metric_of_paired_runs(view.metric) if state.pairing else view.metric
    if view.trial_state:
        trial_runs = state.runs[-RECENT:]
        names = {run.facts.commit: printable(state.request.subjects[run.subject].name) for run in trial_runs}
        return pair_lines([run.facts for run in trial_runs], metric, names.__getitem__, width, glyphs)
    runs = [event.facts for _, event in state.log[-RECENT:] if isinstance(event, RunFinished)]
    return pair_lines(runs, metric, lambda sha: state.facts_of(sha).commit.short_sha, width, glyphs)


def culprit_and_ratio_lines(view: SessionView, width: int, glyphs: Glyphs) -> list[Text]:
    """Two lines: the most probable culprit and its probability; then the ratio of bad to good, and the noise. After the
    verdict, only the second line is shown.
    """
    posterior = view.state.belief
    if posterior is None or view.hunt_start is None:
        return []
    first = Text(view.no_leader_text)
    if view.leader is not None:
        candidate, share = view.leader
        commit = view.commit(candidate)
        first = Text.assemble("most probable  ", (f"{commit.short_sha}  {chance(share)}", "bold"), "  ", commit.subject)
    parts = [view.layout_ratio] if view.layout_ratio else []
    if (effect := view.ratio(len(view.state.commits) - 1)) is not None:
        parts.append(f"bad is {ratio(effect)} of good")
    if posterior.change < 0.95:
        parts.append(f"{chance(posterior.change)} that good and bad differ")
    credible = count(credible_set_size(posterior, 0.95), "candidate")
    parts += [f"noise {percent(posterior.noise)}", f"95 % credible set: {credible}"]
    second = Text(joined_facts(parts, width, glyphs), "dim")
    return [second] if view.state.verdict else [first, second]


def forecast_and_warning_lines(view: SessionView, width: int, complete: bool) -> list[Text]:
    """Lines with the forecast and the warnings. If ``complete`` is false, only the latest warnings are shown, each cut
    to two lines.
    """
    first = folded_lines(view.forecast, width, "", 2, "dim") if view.forecast and view.state.verdict is None else ()
    texts = [advised(text, advice) for text, advice in view.state.warnings.items()]
    texts += [printable(text) for text in (view.state.belief.warnings if view.state.belief is not None else ())]
    texts = texts if complete else texts[-WARNINGS:]
    max_lines = 9 if complete else 2
    folded = (folded_lines(f"! {text}", width, "  ", max_lines, "yellow") for text in texts)
    return [*first, *chain.from_iterable(folded)]


def verdict_sentences(view: SessionView, verdict: Verdict) -> tuple[str, ...]:
    """The verdict in sentences, and the compiler options that perfbisect added to build commits that failed without
    them."""
    history = view.report_command(view.state.id).removeprefix(f"bisect show {view.state.id}")
    return *VerdictSentences(view.state, view.commit, history).sentences(verdict), *view.state.remedy


def verdict_lines(view: SessionView, width: int) -> list[Text]:
    """The lines with the verdict, its reason, and the command that shows the report; empty for a trial, and as long as
    the hunt has no verdict."""
    if view.state.verdict is None or view.hunt_start is None:
        return []
    lines: list[Text] = []
    for position, text in enumerate(verdict_sentences(view, view.state.verdict)):
        begin = "    " if text.startswith("  ") else ""  # indentation of an indented sentence's further lines
        lines += folded_lines(text, width, begin, 9, "" if position else "bold")
    return lines + folded_lines(view.reason, width, "", 9) + folded_lines(view.report_hint, width, "", 9, "dim")


def folded_lines(text: str, width: int, begin: str, max_lines: int, style: str = "") -> list[Text]:
    """``text``, wrapped into at most ``max_lines`` lines of at most ``width`` columns. If text is omitted, … is shown
    instead."""
    start = text[: len(text) - len(text.lstrip())]
    held = text.strip().replace(" %", "\N{NO-BREAK SPACE}%")
    shape = textwrap.TextWrapper(width, start, begin, max_lines=max_lines, placeholder=" …")
    return [Text(line.replace("\N{NO-BREAK SPACE}%", " %"), style) for line in shape.wrap(held)]
