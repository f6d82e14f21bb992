"""The report of a hunt as Markdown, to be pasted into an issue."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from perfbisect.report import cells
from perfbisect.report.content import Story
from perfbisect.report.terminal import built_ahead, extent, machines, so_far, spent
from perfbisect.wording.quantities import moment
from perfbisect.wording.reasons import plan_lines, plans_sentence
from perfbisect.wording.text import advised, metric_title, printable

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
# Words that GitHub, GitLab and Gitea make links or notifications of, whatever is escaped in them: @user, owner/repo#12,
# !7, GH-3, a URL, an address; or emoji and formulas: :name:, $x$. In a code span they stay text.
ACTIVE = re.compile(r"[^\s|]*(?:[@#!%&~^][\w-]|\$|://|www\.|GH-\d|:[a-z+-][\w+-]*:(?![:\w]))[^\s|]*", re.IGNORECASE)
BACKTICKS = re.compile("`+")


def render(story: Story) -> str:
    """The whole report."""
    return "\n".join([*summary(story), *proofs(story), *reasons(story), *details(story)]) + "\n"


def summary(story: Story) -> Iterator[str]:
    """The verdict and what was hunted."""
    hunt, settings = story.hunt, story.settings
    yield f"## {escape(f'{settings.builder} {settings.workload}: {settings.good}..{settings.bad}')}"
    yield ""
    for sentence in story.verdict or so_far(story):
        yield f"- {escape(sentence.strip())}" if sentence.startswith("  ") else f"{escape(sentence)}  "
    yield ""
    yield f"- range: {extent(story)}"
    yield f"- workload: {escape(settings.workload)}, metric {escape(metric_title(settings.metric))}"
    if story.why_metric:
        yield f"- {escape(story.why_metric)}"
    if story.together:
        yield f"- together {escape(story.together)}"
    if settings.quick:
        yield f"- command: {escape(settings.quick.run)}"
    yield f"- builder: {escape(settings.builder)}, {escape(settings.variant)}"
    for patch in cells.patches(story):
        yield f"- patch: {escape(patch)}"
    if skipped := cells.left_out(story):
        yield f"- left out: {escape(skipped)}"
    for machine in machines(story):
        yield f"- host: {escape(machine)}"
    yield f"- hunted: {moment(hunt.started)}; {spent(story)}"
    if story.costs.ahead:
        yield f"- built ahead: {escape(printable(built_ahead(story.costs.ahead)))}"


def proofs(story: Story) -> Iterator[str]:
    """What reverting the culprit on bad has shown."""
    for name, sentences in story.proofs.items():
        yield ""
        yield escape(f"{name}: {' '.join(sentences)}")


def reasons(story: Story) -> Iterator[str]:
    """Why each named commit is slower."""
    for case in story.cases:
        yield ""
        yield f"### Why {case.commit.short}"
        yield ""
        if case.plans:
            yield escape(plans_sentence(case.plans, case.commit.short))
            yield ""
            yield from fenced(plan_lines(case.plans))
            yield ""
        yield f"{escape(case.why)}"
        if rows := cells.counters(case):
            yield ""
            yield from table(cells.COUNTERS, rows, right=cells.COUNTERS[1:])
        for title, rows in cells.function_tables(case):
            yield ""
            yield f"{escape(title)}:"
            yield ""
            yield from table(cells.FUNCTIONS, rows, right=cells.FUNCTIONS[2:6])
        if missing := cells.not_counted(case):
            yield ""
            yield f"Not counted on this host: {escape(missing)}."


def details(story: Story) -> Iterator[str]:
    """The candidates, collapsed; warnings; the command that repeats the hunt."""
    if not story.verdict and story.suspects:
        yield ""
        yield "### Most probable so far"
        yield ""
        titles = ("probability", "commit", "date", "subject")
        yield from table(titles, cells.suspects(story), right=titles[:1])
    yield ""
    yield "<details><summary>Candidates</summary>"
    yield ""
    head = cells.candidates_head(story)
    yield from table(head, cells.candidates(story), right=(head[2], *cells.NUMBERS))
    yield ""
    yield from (f"- {escape(remark)}" for remark in cells.remarks(story))
    yield ""
    yield "</details>"
    if story.warnings:
        yield ""
        yield from (f"- {escape(advised(text, advice))}" for text, advice in story.warnings.items())
    yield ""
    yield from fenced([story.again], "sh")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]) -> Iterator[str]:
    """A table with its columns aligned by the reader's program."""
    yield f"| {' | '.join(map(escape, head))} |"
    yield f"|{'|'.join('--:' if title in right else '---' for title in head)}|"
    yield from (f"| {' | '.join(map(escape, row))} |" for row in rows)


def fenced(lines: Iterable[str], language: str = "") -> Iterator[str]:
    """Lines as a block of code, which none of them can end."""
    body = list(lines)
    fence = "`" * max(3, _longest("\n".join(body)) + 1)
    yield f"{fence}{language}"
    yield from body
    yield fence


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no markup, no links, and no mentions."""
    shown = printable(text)
    parts, end = [], 0
    for word in ACTIVE.finditer(shown):
        parts += [SPECIAL.sub(r"\\\1", shown[end : word.start()]), code(word[0])]
        end = word.end()
    return "".join([*parts, SPECIAL.sub(r"\\\1", shown[end:])])


def code(text: str) -> str:
    """A span of code."""
    marks = "`" * (_longest(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{marks}{space}{text}{space}{marks}"


def _longest(text: str) -> int:
    return max(map(len, BACKTICKS.findall(text)), default=0)
