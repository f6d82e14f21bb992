"""Whole reports, compared with stored files. To accept a changed report, delete its file and run the test twice."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import msgspec
import pytest

import sample_hunt as sample
from perfbisect.core.domain.codec import map_floats
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    RunFinished,
    RunStarted,
    SessionEnded,
    Warned,
)
from perfbisect.core.domain.facts import KnownError, RunFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    Decision,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Step,
    UnsettledRange,
    Verdict,
)
from perfbisect.core.domain.session_state import fold
from perfbisect.core.domain.settings import Flags, PriorKnowledge, Settings
from perfbisect.core.inference.analysis import prior_belief
from perfbisect.core.inference.classification import Classification
from perfbisect.report.command_line import command_to_run
from perfbisect.report.hunt import candidate_remarks, cost_sentences, document
from perfbisect.report.hunt_report import HuntReport, advice_by_known_error, read_hunt_report
from perfbisect.report.markdown import code_block_lines, document_lines, escaped
from perfbisect.report.published import hunt_object
from perfbisect.report.terminal import document_text as in_terminal
from perfbisect.store.connection import default_history_path
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary
from pinned import pinned

RATIO = Interval(0.70, 0.72, 0.74)


EXACT = replace(sample.SETTINGS, metric="instructions/o", prior=PriorKnowledge(exact=True))


def story_of(
    events: Iterable[tuple[float, Event]], state: str = "found", settings: Settings = sample.SETTINGS
) -> HuntReport:
    """The report of a hunt with these events, made without a history."""
    folded = fold(events, [sample.BEGAN])
    folded.renumber_candidates(sample.CANDIDATES)
    folded.started = folded.started and replace(folded.started, metric=settings.metric)
    listed = SessionSummary(
        1, "hunt", sample.BEGAN, "engine", "o2nofp", ("update-index",), "local", "qps", state, 6, 16,
        good="1.0", bad="1.1", commits=14, candidates=10, merges=2,
    )  # fmt: skip
    return HuntReport(listed, settings, folded, default_history_path())


def printed(story: HuntReport, width: int | None = None) -> str:
    return in_terminal(document(story), width)


def issue(story: HuntReport) -> str:
    return "".join(f"{line}\n" for line in document_lines(document(story)))


Timed = Iterator[tuple[float, Event]]


def ended(verdict: Verdict) -> Timed:
    """The events of the sample hunt, with another verdict."""
    for at, event in sample.events():
        match event:
            case Decided(Decision(Found(), belief)):
                yield at, Decided(Decision(verdict, belief))
            case SessionEnded():
                yield at, SessionEnded(verdict)
            case _:
                yield at, event


def poorer() -> Timed:
    """The sample hunt on a host where perf counts only CPU time."""
    read = ("task-clock", "context-switches")

    def other(run: RunFacts) -> RunFacts:
        return replace(run, counters={name: run.counters[name] if name in read else None for name in run.counters})

    return with_runs(other, sample.events())


def with_runs(other: Callable[[RunFacts], RunFacts], events: Iterable[tuple[float, Event]]) -> Timed:
    """The events, in which ``other`` replaces the facts of each run."""
    for at, event in events:
        yield at, replace(event, facts=other(event.facts)) if isinstance(event, RunFinished) else event


def rounded(number: float) -> float:
    """``number`` with ten digits. Further digits differ between processors."""
    return float(f"{number:.10g}")


def test_report_from_history_equals_report_from_events(history: History) -> None:
    story = read_hunt_report(history, sample.write(history))
    listed = story.summary
    assert (listed.state, listed.culprit, listed.probability) == ("found", sample.CANDIDATES[sample.CULPRIT], 0.9731)
    straight = story_of(sample.events())
    straight.summary = listed
    assert hunt_object(story) == hunt_object(straight)


def test_reports_of_a_found_culprit() -> None:
    story = story_of(sample.events())
    pinned("report/found.txt", printed(story))
    pinned("report/found-80.txt", printed(story, 80))
    for width in (60, 80, 100):
        table = printed(story, width).split("Candidates, oldest first")[1].split("\n\n")[0]
        assert max(map(len, table.splitlines())) <= width
    pinned("report/found.md", issue(story))
    encoded = msgspec.json.encode(map_floats(hunt_object(story), rounded))
    pinned("report/found.json", msgspec.json.format(encoded, indent=2).decode() + "\n")


SEVERAL = (Step(5, 0.96, Interval(0.89, 0.9, 0.91), (0,)), Step(8, 0.98, Interval(0.79, 0.8, 0.81), (6, 5)))
SUSPECTS = Inconclusive((8, 7, 9), (0.6, 0.3, 0.06), RATIO, Reason.UNBUILDABLE)


ENDS: dict[str, tuple[str, Callable[[], Timed]]] = {
    "interrupted": ("interrupted", lambda: islice(sample.events(), 30)),
    "inconclusive": ("inconclusive", lambda: ended(SUSPECTS)),
    "not-reproduced": ("not reproduced", lambda: ended(NotReproduced(Interval(0.98, 1.0, 1.02), 0.03))),
    "several": ("several", lambda: ended(Several(SEVERAL))),
    "uncounted": ("found", poorer),
}


@pytest.mark.parametrize("name", ENDS)
def test_report_of_each_end_of_a_hunt(name: str) -> None:
    state, events = ENDS[name]
    story = story_of(events(), state)
    pinned(f"report/{name}.txt", printed(story))


def test_report_without_verdict_shows_proven_changes_first() -> None:
    """The hunt searches for all changes, and is running or interrupted."""
    step = Step(sample.CULPRIT, 0.99, Interval(0.706, 0.718, 0.731), (6,))
    events = list(islice(sample.events(), 30))
    at, decided = next((at, event) for at, event in reversed(events) if isinstance(event, Decided))
    story = story_of([*events, (at, Decided(replace(decided.decision, found=(step,))))], "interrupted")
    proven = story.proven_so_far_sentences
    assert proven[0] == "Found so far: 1 change of QPS:" and "99.0 % sure" in proven[1]
    assert [change.commit.sha for change in story.changes] == [sample.CANDIDATES[sample.CULPRIT]]
    for shown in (printed(story), issue(story)):
        assert shown.index("Found so far") < shown.index("There is no verdict yet")
    assert hunt_object(story)["found"] == proven and story_of(sample.events()).proven_so_far_sentences == ()


def test_commits_that_were_not_built_are_described_by_the_repository(history: History) -> None:
    hunt = sample.begin(history)
    history.append(hunt, SessionEnded(Inconclusive((3,), (0.9,), RATIO, Reason.BUILDS_SPENT)), sample.BEGAN)
    story = read_hunt_report(history, hunt, lambda sha: Commit(sha, "2020-01-02", "A. Author", "Known\x1b to git"))
    assert r"“Known\x1b to git”" in "".join(story.verdict_sentences)
    assert story.suspects[0].commit.date == "2020-01-02"


def test_unsettled_part_of_the_range_is_in_each_report() -> None:
    known = Inconclusive((7, 8), (0.6, 0.3), Interval(0.79, 0.8, 0.81), Reason.UNBUILDABLE)
    story = story_of(ended(Several(SEVERAL[:1], (), (UnsettledRange(6, 8, known),))), "unsettled")
    [part] = hunt_object(story)["unsettled"]
    ends = part["good"]["sha"], part["bad"]["sha"], part["ratio"]["middle"]
    assert ends == (sample.CANDIDATES[6], sample.CANDIDATES[8], 0.8)
    assert [suspect["commit"]["sha"] for suspect in part["suspects"]] == [*sample.CANDIDATES[7:9]]
    for text in (printed(story), issue(story)):
        assert "One part of the range could not be searched completely" in " ".join(text.split())
        assert sample.CANDIDATES[7][:10] in text


def test_report_of_counted_runs_names_instructions_as_the_reason() -> None:
    events = ended(Found(Step(sample.CULPRIT, 0.97, Interval(1.38, 1.42, 1.47), (6,))))
    text = printed(story_of(with_runs(lambda run: replace(run, counted="perf-user"), events), settings=EXACT))
    assert "After this commit, the program executes more instructions per operation" in text
    assert "ot counted on this host" not in text


def also_counted() -> Iterator[tuple[float, Event]]:
    """The sample hunt, with an exact count beside each timed run: a tenth of what perf counted while it was timed."""
    for at, event in sample.events():
        yield at, event
        if isinstance(event, RunFinished):
            counts = {"instructions": (event.facts.counters["instructions"] or 0) / 10}
            yield at, replace(event, facts=replace(event.facts, counters=counts, counted="perf-user"))


def test_counts_and_readings_of_timed_runs_are_not_mixed() -> None:
    runs = [(each["runs"], each["runs"]) for each in hunt_object(story_of(sample.events()))["candidates"]]
    for settings, parent, other in ((sample.SETTINGS, 280_000, "counted exactly"), (EXACT, 28_000, "timed")):
        story = story_of(also_counted(), settings=settings)
        counters = {metric: parent for metric, (parent, _) in story.typical_values(story.changes[0].step).items()}
        assert (counters["instructions/o"], counters["cpu/o"]) == (pytest.approx(parent), pytest.approx(48))
        assert [(each["runs"], each["further"]) for each in hunt_object(story)["candidates"]] == runs
        assert f"91d72b601b was also {other}: 4 runs" in printed(story)


def test_report_before_the_ends_are_measured_has_no_effect() -> None:
    empty = printed(story_of((), "interrupted"))
    assert (
        "14 commits, 10 candidates, 2 merges, 4 commits not built, because they change no file that is built or read"
        in empty
    )
    order = Measure((PlannedRuns(0, 2),), Purpose.ENDS)
    prior = Decided(Decision(order, prior_belief(Graph.straight_history(len(sample.CANDIDATES)))))
    text = printed(story_of([(sample.BEGAN, prior)], "interrupted"))
    assert "There is no verdict yet." in text and "bisect resume 1" in text
    assert "of QPS of good" not in text and "Most probable so far" not in text


def test_foreign_text_cannot_steer_a_terminal_or_break_markdown() -> None:
    nasty = "\x1b[2J\x07evil\n\u202e|`<b>"

    def spoiled(event: Event) -> Event:
        match event:
            case CandidateSkipped(facts=facts):
                return replace(event, facts=replace(facts, reason=nasty))
            case BuildStarted(commit=commit):
                return replace(event, commit=replace(commit, subject=nasty, author=nasty))
        return Warned(nasty, nasty) if isinstance(event, Warned) else event

    story = story_of((at, spoiled(event)) for at, event in sample.events())
    for text in (printed(story), issue(story)):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
        assert "evil" in text
    table = [line for line in issue(story).splitlines() if line.startswith("| ") and "evil" in line]
    assert {r"evil \\u202e\|\`\<b\>" in line for line in table} == {True}


@pytest.mark.parametrize(
    "reason", ["{} does not compile: no rule", "commit {} cannot be checked out: {} is lost", "lost"]
)
def test_remark_on_a_skipped_commit_names_the_commit_once(history: History, reason: str) -> None:
    hunt, short = sample.begin(history), sample.CANDIDATES[1][:10]
    skipped = CandidateSkipped(1, sample.skip(1, reason=reason.format(short, short)))
    history.append(hunt, skipped, sample.BEGAN)
    remark, *_ = candidate_remarks(read_hunt_report(history, hunt))
    rest = reason.removeprefix("commit ").removeprefix("{} ").format(short)
    assert remark == f"{short} was skipped (stage compile): {rest}"


def test_report_names_the_longest_phases_of_builds(history: History) -> None:
    hunt, phases = sample.begin(history), {"compile": 170.0, "checkout": 4.75, "other": 105.24, "patch": 0.01}
    for number in (0, 1):
        facts = replace(sample.build(number, seconds=280.0), phases=phases)
        for event in (BuildStarted(number, sample.COMMITS[number]), BuildFinished(number, facts, None)):
            history.append(hunt, event, sample.BEGAN)
    story = read_hunt_report(history, hunt)
    assert cost_sentences(story).texts == (
        "Cost: 2 builds in 9 min 20 s (61 % of the time compiling, 90 % of compilations from ccache), 0 runs in 0.0 s; 0.0 s in all.",
        "Time of these builds by phase: compiling 5 min 40 s, checking out 9.5 s, the rest 3 min 30 s.",
    )
    told = hunt_object(story)
    assert [sum(each["phases"].values()) for each in (told["costs"], *told["candidates"])] == [560.0, 280.0, 280.0]


def test_costs_leave_out_the_time_between_attempts(history: History) -> None:
    """Also, a build of an earlier hunt costs nothing."""
    events = [(at, event) for at, event in sample.events() if not isinstance(event, RunStarted | BuildProgress)][:20]
    later = events[-1][0] + 86_400
    hunt = sample.begin(history)
    for at, event in events:
        history.append(hunt, event, at)
    history.sessions_of_process.clear()  # as in another process
    history.append(hunt, sample.started(resumed=True), later)
    assert history.attempt_starts(hunt) == [sample.BEGAN, later]
    assert read_hunt_report(history, hunt).costs.seconds == pytest.approx(events[-1][0] - sample.BEGAN)
    hunt = sample.begin(history)
    for started in (BuildStarted(0, sample.COMMITS[0]), BuildFinished(0, replace(sample.build(0), reused=True), None)):
        history.append(hunt, started, sample.BEGAN)
    story = read_hunt_report(history, hunt)
    assert (story.costs.builds, story.costs.build_seconds, story.costs.hit_rate) == (0, 0.0, None)
    assert hunt_object(story)["candidates"][0]["reused"]


def test_a_binary_equal_to_the_baseline_is_good_without_a_run(history: History) -> None:
    hunt = sample.begin(history)
    for node, binary, same_as in ((0, "b", None), (3, "b", 0), (10, "", None)):
        history.append(hunt, BuildFinished(node, sample.build(node, binary=binary), same_as), sample.BEGAN)
    for turn in range(6):
        node, at = (0, 10)[turn % 2], sample.BEGAN + 20 * turn
        history.append(hunt, RunFinished(node, sample.run(node, at, qps=20_000 - 5_000 * (turn % 2))), at + 12)
    rows = {row["node"]: row for row in hunt_object(read_hunt_report(history, hunt))["candidates"]}
    assert rows[3]["same_as"]["sha"] == sample.CANDIDATES[0]
    assert (rows[3]["state"], rows[3]["runs"]) == (Classification.GOOD, 0)
    assert (rows[10]["state"], rows[0]["ratio"]) == (Classification.BAD, None)


def test_report_draws_each_pair_of_runs() -> None:
    both = {sample.CANDIDATES[sample.CULPRIT]: count(1), sample.CANDIDATES[6]: count(1)}

    def beside(run: RunFacts) -> RunFacts:
        return replace(run, round=f"r{next(both[run.commit])}") if run.commit in both else run

    story = story_of(with_runs(beside, sample.events()))
    (change,) = story.changes
    assert len(change.pairs) == 3
    assert all(before > after for before, after in change.pairs), "QPS of the parent, and of the commit"
    lines = printed(story).split("QPS of parent and commit, in each pair of runs:\n")[1].splitlines()[:4]
    assert lines[0].split() == ["parent", "○", "commit", "●", "ratio"]
    assert all(re.search(r"×0\.7\d\d  ─*●━+○─*$", line) for line in lines[1:])
    assert "QPS of parent and commit, in each pair of runs:" in issue(story)
    story.changes = (replace(change, pairs=((2.0, 1.0), *change.pairs * 20)),)
    shown = (
        printed(story).split("QPS of parent and commit, in the latest 40 of 61 pairs of runs:\n")[1].splitlines()[1:41]
    )
    assert not [line for line in shown if "×0.500" in line or "━" not in line]
    assert len({len(line) for line in shown}) == 1, "all pairs are drawn on one axis"


def test_known_error_has_its_number_of_commits_and_a_remedy(tmp_path: Path) -> None:
    old = KnownError("Python 2", other="--host NAME, a host with Python 2")
    found = {4: KnownError("a header", Flags("-include x.h")), 5: KnownError("a header", Flags("-include y.h")), 6: old}
    skips = [CandidateSkipped(node, replace(sample.skip(node), known=known)) for node, known in found.items()]
    settings, path = replace(sample.SETTINGS, flags=Flags("-O1")), tmp_path / "history.db"
    again = command_to_run(replace(settings, flags=Flags("-O1 -include x.h -include y.h")), path)
    assert "--cflags '-O1 -include x.h -include y.h'" in again
    state = fold(enumerate(skips))
    assert advice_by_known_error(state, settings, path, set()) == {}, "the commits cannot be the culprit"
    header, python = advice_by_known_error(state, settings, path, state.tested.keys()).items()
    assert header[0] == f"2 commits did not build for a header, such as {sample.CANDIDATES[4][:10]}"
    assert header[1] == f"Mended by --cflags '-include x.h -include y.h': {again}"
    assert python[0] == f"1 commit did not build for Python 2, such as {sample.CANDIDATES[6][:10]}"
    assert python[1] == f"Mended by {old.remedy}."


# Foreign text in Markdown has no markup, mentions or links.


MENTIONS = (
    "@user", "(@org/team)", "owner/repo#12", "#7", "!3", "GH-9", "https://evil.example/x", "www.evil.example",
    "_www.evil.example", "www.evil.example_", "x@-evil.example", "$(x)$", "$\\alpha$", "$$", ":tada:", ":+1:",
    "x@evil.example", "http://a_b_c/`d`", "user@0123456789abcdef", "ftp://x", "~label", "%2", "$4", "&5",
)  # fmt: skip


def test_foreign_text_in_markdown_has_no_mentions_or_links() -> None:
    for mention in MENTIONS:
        found = re.fullmatch(r"see (`+) ?(.*?) ?\1 now", escaped(f"see {mention} now"))
        assert found, mention
        assert found[2] == mention


def test_foreign_text_in_markdown_has_no_markup() -> None:
    for text in ("<img src=x onerror=y>", "[a](javascript:b)", "![a](b)", "a|b", "`c`", "*d* _e_", "&lt;"):
        shown = re.sub(r"\\[\\`*_\[\]<>|#~&]", "", escaped(text))
        assert not set("`*_[]<>|&") & set(re.sub(r"(`+).*?\1", "", shown)), text


def test_code_span_stays_a_code_span_in_markdown() -> None:
    assert escaped("in `f_1`, by `g<x> @u`") == "in `f_1`, by `g<x> @u`"
    assert escaped("a ` b, ``c``, `d|e`") == r"a \` b, \`\`c\`\`, \`d\|e\`"


def test_fence_of_a_code_block_is_longer_than_fences_inside() -> None:
    first, *_, last = code_block_lines(["a", "```", "````", "<b>"], "sh")
    assert (first, last) == ("`````sh", "`````")
