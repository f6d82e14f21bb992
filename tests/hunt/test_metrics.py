"""`--metric auto` hunts by time, or by instructions if time does not differ between good and bad; hunts by counts."""

import io
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

import machine
from computed import CountingLab, check_replay, commits, events_of, kept, log_of, measured_by, one_host, problem, speeds
from computed import verdict as verdict_of
from perfbisect.core.domain.events import (
    CandidateSkipped,
    Event,
    LabEvent,
    MetricChosen,
    RunFinished,
    SessionEnded,
    Uncounted,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Found, Inconclusive, Measure, NotReproduced, PlannedRuns, Purpose
from perfbisect.core.domain.session_state import fold
from perfbisect.core.domain.settings import COUNTED, WITH_RUNS, ChangeDirection, Policy, Settings
from perfbisect.core.inference.classification import step_ratio_in_metric
from perfbisect.core.inference.instruction_counts import COUNTS
from perfbisect.errors import InstructionsNotCounted, PerfBisectError, RangeEndFailed, RunFailed, UsageError
from perfbisect.hunt.driver import HuntsPlanner, SessionDriver, SessionMember, combined_lab
from perfbisect.hunt.further_runs import TIMED_RUNS, is_too_long_to_count
from perfbisect.hunt.labs import LabMaker, timed_or_counted
from perfbisect.hunt.lifecycle import SessionLifecycle
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.search_problem import SavedLog, WorkersFor
from perfbisect.hunt.session_hosts import HostLocks
from perfbisect.hunt.setup import SessionSetup, with_feasible_layouts
from perfbisect.hunt.workers import ThreadWorkers
from perfbisect.lab.building.candidates import Candidates
from perfbisect.lab.measure import counting
from perfbisect.store.history import History
from perfbisect.ui.lines import PlainLines
from repos import Repo

pytestmark = pytest.mark.tools

NAMES = commits(120)
CULPRIT, OTHER = 71, 30
VALGRIND = "valgrind-3.19.0"


def world(seed: int, slow: float = 1.0, at: int = CULPRIT, more: float = 1.0, **others: object) -> CountingLab:
    """A lab in which the commit ``at`` slows builds down, and CULPRIT makes builds execute more instructions."""
    made = CountingLab(NAMES, speeds(NAMES, at, slow), more=speeds(NAMES, CULPRIT, more), **others)  # type: ignore[arg-type]
    made.luck.seed(seed)
    return made


def hidden(seed: int = 1, noise: float = 0.05) -> CountingLab:
    """A lab in which CULPRIT adds 1 % to time and instructions, less than the noise of the time."""
    return world(seed, slow=0.99, more=1.01, noise=noise)


@dataclass(frozen=True)
class Labs:
    """The part of ``LabMaker`` that these hunts use."""

    workers: WorkersFor
    lab: CountingLab


class ComputedHunt(SessionLifecycle):
    """A hunt whose setup and decisions are real, and whose measurements are computed."""

    def __init__(self, log: SavedLog, setup: SessionSetup, lab: CountingLab) -> None:
        self.lab = lab
        super().__init__(log, setup, {}, cast(HostLocks, None), False)

    def _labs_of(self, setup: SessionSetup) -> LabMaker:
        self.lab = replace(self.lab, exactly=setup.settings.prior.exact)  # keeps its builds and its random generator
        return cast(LabMaker, Labs(measured_by(self.lab, setup.settings.metric), self.lab))


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[object], str]], None]:
    """``method(lambda host: …)`` sets how hosts count instructions; the default is valgrind."""

    def replaced(by: Callable[[object], str]) -> None:
        monkeypatch.setattr(counting, "counting_method", by)

    replaced(lambda _: VALGRIND)
    return replaced


@pytest.fixture
def timed(git: Repo) -> Settings:
    """The settings of a hunt through two commits, by QPS."""
    git.history({"file.c": f"int x = {number};\n"} for number in range(2))
    policy = Policy(layouts=True)
    return Settings("HEAD~1", "HEAD", str(git.path), "demo", "update-index", "local", metric="qps", policy=policy)


def set_up(settings: Settings) -> SessionSetup:
    [found] = SessionSetup.set_up([resolve_settings(settings)])
    return found


@pytest.fixture
def setup(timed: Settings, method: object) -> SessionSetup:
    """A setup with a real recipe and host, which decide how to count, and an invented range."""
    found = set_up(replace(timed, metric="auto", policy=Policy(min_counted=COUNTED)))
    assert (found.settings.metric, found.settings.choose_metric) == ("qps", True)
    span = replace(found.span, graph=Graph.straight_history(len(NAMES) - 1), candidates=NAMES)
    return replace(found, span=span)


def session(
    logs: Sequence[SavedLog], setups: Sequence[SessionSetup], labs: Sequence[CountingLab]
) -> Generator[tuple[int, Event]]:
    """The events of hunts that are carried out together, each with the index of its hunt."""
    courses = [ComputedHunt(*each) for each in zip(logs, setups, labs, strict=True)]
    members = [
        SessionMember(
            each.problem,
            each.log,
            each,
            change_metric=each.change_metric if each.setup.settings.choose_metric else None,
        )
        for each in courses
    ]

    def workers() -> ThreadWorkers:
        if len(courses) == 1:
            return cast(ThreadWorkers, courses[0].labs.workers(NAMES))
        return one_host(combined_lab({n: cast(Labs, each.labs).lab.measure for n, each in enumerate(courses)}))

    driver = SessionDriver(members, HuntsPlanner(members), workers, lambda _, failure: pytest.fail(str(failure)))
    with closing(driver.events()) as events:
        for number, (_, event) in events:
            yield number, event


class Hunted:
    """A hunt through all of ``NAMES``, or its first ``cut`` events."""

    def __init__(self, log: SavedLog, setup: SessionSetup, lab: CountingLab, cut: int | None = None) -> None:
        self.log = log
        self.events = [event for _, event in islice(session([log], [setup], [lab]), cut)]
        self.chosen = [event for event in self.events if isinstance(event, MetricChosen)]
        self.runs = [(event.facts.commit, bool(event.facts.counted)) for event in events_of(log, RunFinished)]
        self.counted = sorted(commit for commit, counted in self.runs if counted)


def named(events: Sequence[Event]) -> object:
    """The candidate that is named, or the type of the verdict."""
    verdict = verdict_of(events)
    return verdict.step.candidate if isinstance(verdict, Found) else type(verdict)


NOTHING = NotReproduced, Inconclusive


@pytest.fixture
def log(history: History) -> SavedLog:
    return log_of(history, NAMES)


@pytest.mark.parametrize("noise", [0.03, 0.05, 0.3])
def test_culprit_with_one_percent_more_instructions_is_found(log: SavedLog, setup: SessionSetup, noise: float) -> None:
    hunt = Hunted(log, setup, hidden(noise=noise))
    assert named(hunt.events) == CULPRIT
    [chosen] = hunt.chosen
    assert (chosen.metric, chosen.usual) == (INSTRUCTIONS, "qps")
    assert chosen.why.startswith("The metric is instructions/o from here on, which shows a rise of 1.0 %, and runs")
    assert " of good, which is not enough to find the change." in chosen.why
    assert len(hunt.counted) <= 16
    stored = log.history.settings(log.hunt)
    assert (stored.metric, stored.choose_metric, stored.prior.exact) == (INSTRUCTIONS, False, True)


@pytest.mark.parametrize(
    ("noise", "seed", "allowed"), [(0.01, 0, {OTHER}), (0.01, 1, {OTHER}), (0.1, 0, {OTHER, *NOTHING})]
)
def test_drop_without_more_instructions_is_found_by_time_or_not_at_all(
    log: SavedLog, setup: SessionSetup, noise: float, seed: int, allowed: set[object]
) -> None:
    """Another commit, CULPRIT, adds 0.3 % instructions, and must not be named."""
    hunt = Hunted(log, setup, world(seed, slow=0.95, at=OTHER, more=1.003, noise=noise))
    assert not hunt.chosen
    assert named(hunt.events) in allowed


def test_instructions_are_not_counted_if_time_shows_the_drop(log: SavedLog, setup: SessionSetup) -> None:
    hunt = Hunted(log, setup, world(1, slow=0.8, more=1.3))
    assert (named(hunt.events), hunt.counted) == (CULPRIT, [])


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_ends_without_a_change_are_counted_once_each(log: SavedLog, setup: SessionSetup, noise: float) -> None:
    hunt = Hunted(log, setup, world(1, noise=noise))
    assert named(hunt.events) in NOTHING
    assert hunt.counted == [NAMES[0], NAMES[-1]]


def test_warning_advises_options_to_hunt_a_small_rise_of_instructions(log: SavedLog, setup: SessionSetup) -> None:
    small = replace(setup, settings=replace(setup.settings, policy=Policy(min_effect=0.02)))
    hunt = Hunted(log, small, world(1, slow=0.99, more=1.012, noise=0.03))
    [said] = [event for event in hunt.events if isinstance(event, Warned) and "instructions/o" in event.text]
    assert said.text.endswith("this change is too small to search for")
    assert said.advice == "To find its commit: --metric instructions/o --min-effect 0.8%"


def test_hunt_is_by_time_on_a_host_that_cannot_count(log: SavedLog, setup: SessionSetup, method: Any) -> None:
    method(lambda _: "")
    hunt = Hunted(log, setup.for_settings(setup.settings), hidden(3))
    assert (named(hunt.events), hunt.counted) == (NotReproduced, [])


def test_counts_of_perf_during_timed_runs_are_used_for_servers(log: SavedLog, setup: SessionSetup, method: Any) -> None:
    """The count varies by 0.2 % from run to run, so a rise of 4 % is clear."""
    method(lambda _: "")
    hunt = Hunted(log, setup, world(2, slow=0.99, more=1.04, noise=0.1, counts=""))
    assert named(hunt.events) == CULPRIT
    assert [event.metric for event in hunt.chosen] == [INSTRUCTIONS]
    assert not log.history.settings(log.hunt).prior.exact


@pytest.mark.parametrize("counts", [True, False])
def test_counts_of_perf_with_several_threads_save_runs(
    log: SavedLog, timed: Settings, method: Any, counts: bool
) -> None:
    """The counts show where time changes, which saves most runs. No run is made only to count."""
    method(lambda _: counting.PERF)
    found = set_up(replace(timed, metric="auto", overrides={"threads": 2}, policy=Policy(), counts=counts))
    setup = replace(found, span=replace(found.span, graph=Graph.straight_history(len(NAMES) - 1), candidates=NAMES))
    assert (setup.settings.prior.count_cost, setup.hosts[0].beside_method) == (WITH_RUNS if counts else None, "")
    hunt = Hunted(log, setup, world(2, slow=0.97, more=1.03, noise=0.01, counts=""))
    assert (named(hunt.events), hunt.counted) == (CULPRIT, [])
    assert (sum(isinstance(each, RunFinished) for each in hunt.events) < 32) is counts


def test_hunt_continues_by_time_if_counting_fails(log: SavedLog, setup: SessionSetup) -> None:
    """For example, valgrind does not know each instruction of each processor."""

    class Failing(CountingLab):
        def measure(self, order: Measure) -> Generator[LabEvent]:
            if self.exactly:
                raise UsageError("no.", "Do this.")
            yield from CountingLab.measure(self, order)

    alone = setup.for_settings(replace(setup.settings, counts=False))
    hunt = Hunted(log, alone, Failing(**vars(hidden(noise=0.01))))
    assert Warned("Instructions are not counted exactly: no.", "Do this.") in hunt.events
    assert isinstance(hunt.events[-1], SessionEnded)


@pytest.mark.parametrize(
    ("stage", "trouble"),
    [
        ("run", None),
        ("compile", None),
        ("", UsageError("It does nothing.")),
        ("", InstructionsNotCounted("It printed nothing.")),
        ("run", RangeEndFailed("It ends.")),
        ("compile", RangeEndFailed("It ends.")),
    ],
)
def test_build_whose_instructions_cannot_be_counted_is_still_timed(stage: str, trouble: PerfBisectError | None) -> None:
    """Only a candidate that cannot be built is skipped."""

    def counted(order: Measure) -> Generator[LabEvent]:
        [candidate] = (share.candidate for share in order.plan)
        if trouble:
            raise trouble from (RunFailed("Illegal instruction.", stage=stage, log="") if stage else None)
        yield CandidateSkipped(candidate, SkipFacts(NAMES[candidate], stage, "Illegal instruction.", "", 1.0))

    lab = timed_or_counted(hidden().measure, counted, cast(Candidates, Mock(commits=NAMES)))
    events = lab(Measure((PlannedRuns(3, 1),), Purpose.SEARCH, counted=True))
    if stage == "compile" and trouble:
        with pytest.raises(RangeEndFailed):
            next(events)
    elif stage == "compile":
        assert isinstance(next(events), CandidateSkipped)
    else:
        said, last = events
        assert isinstance(said, Warned) and said.text.startswith(
            f"the instructions of {NAMES[3][:10]} cannot be counted: "
        )
        assert isinstance(last, Uncounted) and last.candidate == 3
    assert any(isinstance(event, RunFinished) for event in lab(Measure((PlannedRuns(3, 1),), Purpose.SEARCH)))


def test_long_command_without_numbered_operations_is_not_counted(log: SavedLog, setup: SessionSetup) -> None:
    """A run takes ten seconds, but minutes under valgrind. With ``{events}``, a count of few operations is enough."""
    for event in world(1).measure(Measure((PlannedRuns(0, 1), PlannedRuns(len(NAMES) - 1, 1)), Purpose.ENDS)):
        log.append(event)
    for method, long in ((VALGRIND, True), (counting.PERF, False)):
        counted = replace(setup, hosts=tuple(replace(each, count_method=method) for each in setup.hosts))
        assert not is_too_long_to_count(counted, problem(NAMES), log)
        for words, taken in ((("./bench",), long), (("./bench", "{events}"), False)):
            command = msgspec.structs.replace(setup.workload, command=words)
            assert is_too_long_to_count(replace(counted, workload=command), problem(NAMES), log) is taken


@pytest.mark.parametrize("cut", [8, 38, 60])
def test_resumed_hunt_finds_the_same_culprit(log: SavedLog, setup: SessionSetup, cut: int) -> None:
    """Ends that were counted before the interruption are not counted again."""
    lab = hidden()
    Hunted(log, setup, lab, cut)
    stored = log.history.settings(log.hunt)
    settings = stored if stored.metric == INSTRUCTIONS else setup.settings
    again = Hunted(SavedLog(log.history, log.hunt), setup.for_settings(settings), lab)
    assert named(again.events) == CULPRIT
    assert [again.counted.count(end) for end in (NAMES[0], NAMES[-1])] == [COUNTS, COUNTS]


@pytest.mark.parametrize("most", [6, 40])
def test_budget_of_runs_includes_timed_and_counted_runs(log: SavedLog, setup: SessionSetup, most: int) -> None:
    few = replace(setup, settings=replace(setup.settings, policy=Policy(min_counted=COUNTED, max_runs=most)))
    hunt = Hunted(log, few, hidden())
    assert isinstance(hunt.events[-1], SessionEnded)
    assert len(hunt.runs) <= most


def test_each_hunt_of_a_group_changes_its_metric_alone(history: History, setup: SessionSetup) -> None:
    """The second hunt finds its culprit by time. No commit is built twice."""
    built: list[str] = []
    labs = [replace(each, built=built) for each in (hidden(noise=0.05), world(2, slow=0.8, at=OTHER))]
    events = [*session([log_of(history, NAMES) for _ in labs], [setup, setup], labs)]
    assert [named([event for number, event in events if number == hunt]) for hunt in (0, 1)] == [CULPRIT, OTHER]
    assert [number for number, event in events if isinstance(event, MetricChosen)] == [0]
    assert len(built) == len(set(built))


def test_replay_repeats_decisions_by_instructions(log: SavedLog, setup: SessionSetup) -> None:
    Hunted(log, setup, hidden())
    settings = log.history.settings(log.hunt)
    asked = replace(problem(NAMES, settings.metric), policy=settings.policy, prior=settings.prior)
    check_replay(
        asked, log, next(place for place, (_, event) in enumerate(kept(log)) if isinstance(event, MetricChosen))
    )


def test_verdict_by_instructions_states_the_change_of_time(log: SavedLog, setup: SessionSetup) -> None:
    hunt, out = Hunted(log, setup, world(2, slow=0.9999, more=1.01, noise=0.1)), io.StringIO()
    PlainLines(out, {log.hunt: ""}).add_events(log.hunt, [(0.0, event) for event in hunt.events])
    said = " ".join(out.getvalue().split())
    assert "metric The metric is instructions/o from here on, which shows a rise of 1.0 %" in said
    sentence = (
        "This commit adds 1.0 % instructions per operation, but a cost in time is not shown: after this change, QPS is "
    )
    assert sentence in said
    state = fold(kept(log))
    assert isinstance(state.verdict, Found) and state.started
    assert (state.started.metric, state.pairing) == (INSTRUCTIONS, None)
    timed = step_ratio_in_metric(state, state.verdict.step, "qps")
    assert timed and not timed.excludes_one
    assert hunt.runs.count((NAMES[CULPRIT], False)) >= TIMED_RUNS


def test_hunt_for_a_rise_or_with_slow_after_is_by_time_only(setup: SessionSetup) -> None:
    for direction, slow_after in ((ChangeDirection.RISE, 0.0), (None, 5.0), (None, 0.0)):
        asked = replace(setup.settings, metric="auto", policy=Policy(slow_after=slow_after))
        assert resolve_settings(asked, direction).choose_metric is not bool(direction or slow_after)


@pytest.mark.usefixtures("method")
def test_counted_and_timed_runs_use_the_same_builds(timed: Settings) -> None:
    """Otherwise `--metric auto` would build the ends twice, and find them built differently afterwards."""
    setup = set_up(timed)
    counted = setup.for_settings(replace(setup.settings, metric=INSTRUCTIONS))
    assert (setup.settings.prior.exact, counted.settings.prior.exact) == (False, True)
    assert setup.settings.policy.layouts is counted.settings.policy.layouts is True
    without = with_feasible_layouts(replace(setup, settings=replace(setup.settings, repository="")))
    assert setup.settings.linkable and not without.settings.linkable


def test_hosts_that_count_by_different_methods_count_nothing_exactly(timed: Settings, method: Any) -> None:
    setup = set_up(timed)
    by_perf, by_valgrind = setup.hosts[0].host, object()
    method(lambda host: counting.PERF if host is by_perf else VALGRIND)
    both = replace(setup, hosts=(setup.hosts[0], replace(setup.hosts[0], host=by_valgrind)))
    exact = replace(setup.settings, metric=INSTRUCTIONS)
    assert setup.for_settings(exact).settings.prior.exact
    mixed = both.for_settings(exact)
    assert not mixed.settings.prior.exact
    assert {each.count_method for each in mixed.hosts} == {""}


@pytest.mark.usefixtures("method")
def test_time_options_without_effect_on_counted_runs_are_a_warning(timed: Settings) -> None:
    def said(**changes: object) -> list[str]:
        setup = set_up(replace(timed, **changes))  # type: ignore[arg-type]
        return [warning.text for warning in setup.warnings if "no effect" in warning.text]

    given = {"time": 5.0, "warmup": 1.0}
    assert said(overrides=given) == said(metric=INSTRUCTIONS) == []
    [sentence] = said(overrides=given, metric=INSTRUCTIONS)
    assert sentence.startswith("--time and --warmup have no effect on runs whose instructions are counted exactly")
    [sentence] = said(overrides={"time": 5.0}, metric=INSTRUCTIONS)
    assert sentence.startswith("--time has no effect")


@pytest.mark.skipif(bool(machine.why_not()), reason="needs a view of the file system of its own")
@pytest.mark.parametrize("name", ["root", "other"])
def test_host_replaces_its_build_host_only_if_their_roots_are_equal(timed: Settings, tmp_path: Path, name: str) -> None:
    """Build host ``b`` is this machine with a separate file system at ``root``. Builds contain the path of the root."""
    root, hosts = tmp_path / name, tmp_path / "hosts.toml"
    root.mkdir()
    hosts.write_text(
        f'[hosts.quiet]\nroot = "{tmp_path}/root"\nbuild_hosts = ["b"]\n[hosts.b]\nroot = "{root}"\n'
        f"through = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs -o mode=755 none {root} && exec \"$@\"', 'sh']\n"
    )
    settings = replace(timed, host="quiet", hosts_path=str(hosts))
    assert set_up(settings).hosts[0].can_build is (name == "root")
