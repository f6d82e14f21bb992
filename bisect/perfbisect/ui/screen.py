"""The whole picture of a hunt as lines of text: a pure function of the view, the size and the clock."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.verdict import chance, sentences
from perfbisect.ui.estimate import bits
from perfbisect.ui.glyphs import ASCII, UNICODE, Glyphs, bar, sparkline, writable
from perfbisect.ui.state import Building, Running, View, minutes_left
from perfbisect.ui.strip import strip
from perfbisect.ui.table import table
from perfbisect.ui.words import PURPOSES, clock, count, ends, printable, rate, rough, spent

LEAST_ROWS = 3  # of the table, its header and last line included
WARNINGS = 3


@dataclass(frozen=True, slots=True)
class Section:
    """Lines that belong together; the higher ``worth``, the longer they stay on a terminal that gets shorter."""

    lines: list[Text]
    worth: int


def lines(view: View, width: int, height: int | None, now: float, glyphs: Glyphs = UNICODE) -> list[Text]:
    """At most ``height`` lines (None: as many as it takes) of at most ``width`` columns, at ``now`` (epoch seconds)."""
    room = max(10, width - 2)
    above = [Section(header(view, room, now, glyphs), 9), Section(strip(view, room, glyphs), 6)]
    above.append(Section(verdict(view, room) if view.verdict else under_way(view, room, now, glyphs), 8))
    below = [Section(belief(view, glyphs), 7), Section(warnings(view, room, whole=height is None), 3)]
    others = sum(len(section.lines) + 1 for section in above + below if section.lines)
    rows = None if height is None else max(LEAST_ROWS, height - others) - 1
    drawn = fit([*above, Section(table(view, room, rows, glyphs), 5), *below], height)
    for line in drawn:
        line.plain = writable(line.plain, "ascii") if glyphs is ASCII else line.plain
        line.pad_left(1)
        line.truncate(width)
        line.no_wrap = True
    return drawn


def fit(sections: list[Section], height: int | None) -> list[Text]:
    """The lines of all sections with empty lines between; if too many, first those go, then the least worthy lines."""
    sections = [section for section in sections if section.lines]
    total = sum(len(section.lines) for section in sections)
    airy = height is None or total + len(sections) - 1 <= height
    while height is not None and total > height:
        poorest = min((s for s in sections if s.lines), key=lambda s: s.worth)
        poorest.lines.pop()
        total -= 1
    drawn: list[Text] = []
    for section in sections:
        drawn += [Text()] if drawn and airy else []
        drawn += section.lines
    return drawn


def header(view: View, room: int, now: float, glyphs: Glyphs) -> list[Text]:
    """What is hunted, how long it has taken and will take; what it has cost."""
    if view.hunt is None:
        return [Text("preparing the hunt")]
    hunt, dot = view.hunt, f" {glyphs.dot} "
    what = dot.join((hunt.builder, hunt.workload, hunt.host.name))
    until = view.ended or now
    time = f"{clock(until - (view.began or until))} elapsed"
    left = minutes_left(view, now)
    if view.verdict is None:
        time += dot + (f"{rough(left)} left" if left is not None else "estimating")
    asked = f"{printable(hunt.good)} {glyphs.arrow} {printable(hunt.bad)}"
    size = [count(hunt.commits, "commit"), count(len(hunt.candidates) - 1, "candidate")]
    size += [count(hunt.merges, "merge")] if hunt.merges else []
    skipped = sum(bool(row.skipped) for row in view.rows.values())
    cost = [count(sum(row.builds for row in view.rows.values()), "build"), count(view.runs, "run")]
    cost += [f"{skipped} skipped"] if skipped else []
    return [
        both_ends(Text(f"hunt {hunt.hunt}{dot}{what}", "bold"), Text(time), room),
        both_ends(Text(f"{asked}{dot}{dot.join(size)}", "dim"), Text(dot.join(cost), "dim"), room),
    ]


def both_ends(left: Text, right: Text, room: int) -> Text:
    """One line with text at both ends; the left one gives way."""
    space = room - cell_len(right.plain)
    if cell_len(left.plain) + 2 > space:
        left.truncate(max(0, space - 2))
    left.append(" " * max(0, space - cell_len(left.plain)))
    return left.append_text(right)


def under_way(view: View, room: int, now: float, glyphs: Glyphs) -> list[Text]:
    """What runs now: always two lines, so that nothing jumps."""
    match view.now:
        case Building() as build:
            return [build_title(view, build), build_line(view, build, room, now, glyphs)]
        case Running() as run:
            return [run_title(view, run, glyphs), run_line(view, run, room, now, glyphs)]
        case None:
            return [Text("deciding" if view.rows else "starting", "dim"), Text()]


def build_title(view: View, build: Building) -> Text:
    """Which commit is built."""
    commit = view.commit(build.candidate)
    return Text.assemble(
        ("built     " if build.finished else "building  "), (commit.short, "bold"), "  ", commit.subject
    )


def build_line(view: View, build: Building, room: int, now: float, glyphs: Glyphs) -> Text:
    """How far the build is."""
    row = view.rows.get(build.candidate)
    if build.finished and row is not None:
        facts = ["an earlier build is used again"] if row.reused else [f"in {spent(row.build_seconds)}"]
        facts += [f"ccache {row.hit_rate * 100:.0f} %"] if row.hit_rate is not None else []
        fraction, said = 1.0, facts
    else:
        steps = f"{build.done:,} of {build.total:,}" if build.total else ""
        fraction = build.done / build.total if build.total else 0.0
        said = [part for part in (steps, build.stage, clock(now - build.since)) if part]
    behind = f"  {f' {glyphs.dot} '.join(said)}"
    done, todo = bar(fraction, max(5, min(60, room - 36)), glyphs)
    return Text.assemble((done, "cyan"), (todo, "dim"), behind)


def run_title(view: View, run: Running, glyphs: Glyphs) -> Text:
    """Which run of which commit, and what for."""
    commit = view.commit(run.candidate)
    which = f"run {run.number} of {run.of} {glyphs.dot} {PURPOSES[run.purpose]}  "
    return Text.assemble(which, (commit.short, "bold"), "  ", commit.subject)


def run_line(view: View, run: Running, room: int, now: float, glyphs: Glyphs) -> Text:
    """The rate so far, from 0 to the highest rate seen."""
    passed = run.seconds if run.finished else min(run.seconds, max(0.0, now - run.since))
    metric = f"{rate(run.samples[-1])} QPS" if run.samples else "warming up"
    behind = f"{metric} {glyphs.dot} {passed:.0f} of {run.seconds:.0f} s"
    size = max(5, min(60, room - 36))
    drawn = sparkline(run.samples, view.top, size, glyphs)
    return Text.assemble((drawn, "cyan"), (" " * (size - len(drawn))), "  ", behind)


def belief(view: View, glyphs: Glyphs) -> list[Text]:
    """Who leads and how sure that is, how the ends differ, how noisy runs are."""
    known = view.belief
    if known is None:
        return []
    first = Text("no commit stands out yet")
    if view.leader is not None:
        candidate, share = view.leader
        commit = view.commit(candidate)
        first = Text.assemble((f"{chance(share)}  {commit.short}", "bold"), "  ", commit.subject)
    facts = []
    if np.isfinite(known.effect.middle) and view.runs > 1:
        facts.append(f"bad is {known.effect.middle:.3f} of good ({ends(known.effect)})")
    if known.change < 0.95:
        facts.append(f"they differ: {chance(known.change)}")
    facts.append(f"noise {known.noise * 100:.1f} %")
    facts.append(f"{bits(known):.1f} bits to find")
    return [first, Text(f" {glyphs.dot} ".join(facts), "dim")]


def warnings(view: View, room: int, whole: bool) -> list[Text]:
    """What should be known of the host; the latest ones if there are many."""
    texts = [" ".join(part for part in (one.text, one.advice) if part) for one in view.warnings]
    texts += [printable(text) for text in (view.belief.warnings if view.belief is not None else ())]
    shown = texts if whole else texts[-WARNINGS:]
    return [Text(line, "yellow") for text in shown for line in folded(f"! {text}", room, "  ", 9 if whole else 2)]


def verdict(view: View, room: int) -> list[Text]:
    """The verdict in sentences."""
    if view.verdict is None or view.hunt is None:
        return []
    said = sentences(view.verdict, view.commit, view.hunt.metric)
    told = [(line, place == 0) for place, text in enumerate(said) for line in folded(text, room, indent(text), 9)]
    return [Text(line, "bold" if first else "") for line, first in told]


def indent(text: str) -> str:
    """How further lines of a sentence or of a list entry begin."""
    return "    " if text.startswith("  ") else ""


def folded(text: str, room: int, begin: str, most: int) -> Iterator[str]:
    """``text`` in lines of at most ``room`` columns, ``most`` of them."""
    start = text[: len(text) - len(text.lstrip())]
    wrapped = textwrap.wrap(text.strip(), room, initial_indent=start, subsequent_indent=begin)
    yield from wrapped[:most]
