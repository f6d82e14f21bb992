"""What is noticed of a host between two measurements."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, repeat

import pytest

import sample_hunt
from fake_host import FakeHost
from perfbisect.core.domain.events import CandidateSkipped, Commit, LabEvent, RunFinished, RunProgress, Warned
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.errors import BuildFailed, EndFailed, EnvironmentFailure, JobLost, RunFailed
from perfbisect.host.facts import Fact, fingerprint, read_line
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import HostLock, hold
from perfbisect.lab import guarded_lab
from perfbisect.lab.build.candidates import Candidates
from perfbisect.lab.guarded_lab import LOSSES, GuardedLab, RetryPolicy
from perfbisect.wording.quantities import percent

ORDER = Measure((Share(0, 1),), Purpose.SEARCH)
RAN = RunProgress(0, 1.0, 100.0)


class Events:
    """Measures without doing anything, once or ``forever``."""

    left = False

    def __init__(self, *events: LabEvent, forever: bool = False) -> None:
        self.events, self.forever = events, forever

    def measure(self, _order: Measure) -> Iterator[LabEvent]:
        try:
            yield from self.events
            while self.forever:
                yield from self.events
        finally:
            self.left = True


@pytest.fixture
def watched(host: LocalHost) -> GuardedLab:
    return GuardedLab(Events(RAN), host, HostLock(host, "mine"), fingerprint(host))


def measure(watched: GuardedLab) -> list[LabEvent]:
    return list(watched.measure(ORDER))


class Fails:
    """Cannot build a candidate, or measure at all."""

    def __init__(self, failure: EnvironmentFailure | None) -> None:
        self.failure = failure

    def measure(self, _order: Measure) -> Iterator[LabEvent]:
        if self.failure:
            raise self.failure
        yield CandidateSkipped(0, sample_hunt.skip(0))


@pytest.mark.parametrize("failure", [None, EnvironmentFailure("no such file")])
def test_what_fails_without_its_root_folder_fails_for_that_reason(
    watched: GuardedLab, failure: EnvironmentFailure | None
) -> None:
    watched.lab = Fails(failure)
    with hold(watched.host, "mine") as watched.held:
        if failure:
            with pytest.raises(EnvironmentFailure, match="no such file"):
                measure(watched)
        else:
            assert len(measure(watched)) == 1
        watched.host.run(["rm", "-r", str(watched.host.root)])
        with pytest.raises(EnvironmentFailure, match=r"root folder .* of host .* was removed"):
            measure(watched)


def said(text: str) -> Fact[str]:
    return Fact(("echo", text), read_line)


def df(mib: int) -> Fact[int]:
    return Fact(("echo", str(mib)), lambda line: int(line) << 20)


def test_a_changed_setting_is_said_once(watched: GuardedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.facts = replace(watched.facts, settings={**watched.facts.settings, "governor": "performance"})
    monkeypatch.setitem(guarded_lab.SET, "governor", said("powersave"))
    warned, ran = measure(watched)
    assert isinstance(warned, Warned)
    assert warned.text == ("host here has changed during this hunt: its governor was performance and is powersave")
    assert ran is RAN
    assert measure(watched) == [RAN]


def test_heat_is_said_when_it_grows(watched: GuardedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for times, told in ((700, 0), (700, 0), (712, 1), (712, 0)):
        throttled = Fact(("echo", str(times)), int)
        monkeypatch.setattr(guarded_lab, "THROTTLED", throttled)
        monkeypatch.setattr(guarded_lab, "PASSING", (throttled,))
        warnings = [event for event in measure(watched) if isinstance(event, Warned)]
        assert len(warnings) == told
        assert all("12 times" in warning.text for warning in warnings)


def test_little_room_is_said_once_and_none_stops(watched: GuardedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_lab, "free", lambda root: df(2000))
    warned, _ = measure(watched)
    assert isinstance(warned, Warned)
    assert "bisect gc here" in warned.advice
    assert measure(watched) == [RAN]
    monkeypatch.setattr(guarded_lab, "free", lambda root: df(100))
    with pytest.raises(EnvironmentFailure, match="no space left on host here: 100 MiB are left") as caught:
        measure(watched)
    assert "bisect gc here" in caught.value.advice


def test_a_host_that_is_not_ours_any_more_is_left_alone(watched: GuardedLab) -> None:
    watched.held.lost = True
    with pytest.raises(EnvironmentFailure, match="another process measures there now"):
        next(iter(watched.measure(ORDER)))


def test_nothing_counts_from_the_moment_the_host_is_not_ours_any_more(watched: GuardedLab) -> None:
    lab = Events(RAN, forever=True)
    watched.lab = lab
    counted = []
    with pytest.raises(EnvironmentFailure, match="another process measures there now"):
        for event in watched.measure(ORDER):
            counted.append(event)
            watched.held.lost = True
    assert counted == [RAN]
    assert lab.left, "the lab has tidied up"


@pytest.mark.parametrize(("share", "warnings"), [(0.49, 0), (0.5, 1), (1.0, 1)])
def test_a_client_that_limits_the_server_is_a_warning_once(watched: GuardedLab, share: float, warnings: int) -> None:
    facts = sample_hunt.run(0, 0.0)
    busy = RunFinished(0, replace(facts, counters={**facts.counters, "client-busy": share}))
    watched.lab = Events(busy, busy)
    found = [event.text for event in (*measure(watched), *measure(watched)) if isinstance(event, Warned)]
    assert len(found) == warnings
    assert all(f"the client uses {percent(share)} of the time" in text for text in found)


def test_a_build_that_falls_behind_is_a_warning_once(watched: GuardedLab) -> None:
    facts = sample_hunt.run(0, 0.0)
    slow = replace(facts, counters={"insert-done": 871.0, "insert-due": 1000.0, "insert-rate": 100.0})
    other = replace(slow, build_key="other", commit="b" * 40)
    watched.lab = Events(RunFinished(0, slow), RunFinished(0, slow), RunFinished(1, other))
    found = [event.text for event in measure(watched) if isinstance(event, Warned)]
    assert [text.partition(" ")[0] for text in found] == [slow.commit[:10], "b" * 10]
    assert all("it sustains 87.1 of 100 rows per second (insert)" in text for text in found)


def test_the_runs_of_a_visit_count_together(watched: GuardedLab) -> None:
    """One that is a little behind fails no build."""
    paced = {"insert-due": 1000.0, "insert-rate": 100.0}
    runs = [replace(sample_hunt.run(0, 0.0), counters={**paced, "insert-done": done}) for done in (985.0, 1000.0)]
    watched.lab = Events(*(RunFinished(0, facts) for facts in runs))
    assert not [event for event in measure(watched) if isinstance(event, Warned)]


COMMITS = tuple(letter * 40 for letter in "abc")
GOOD, MIDDLE, BAD = range(3)


def policy(boots: Iterator[str], *, is_range: bool = True, free: int = 1 << 40) -> RetryPolicy:
    """That of a host whose boot is asked for, and that has so many free bytes."""
    answers = {"cat */boot_id": lambda *_: next(boots), "df *": f"Avail\n{free}\n"}
    candidates = Candidates(None, COMMITS, Commit, ends={COMMITS[GOOD]: "the good end"}, is_range=is_range)
    return RetryPolicy(FakeHost("here", answers), candidates, "bench")


LOST = JobLost("it ended without an exit status")
FAILURES = (
    (BuildFailed("a.c:1: error", stage="compile", log="log"), "cannot be built: a.c:1: error"),
    (RunFailed("status 7", stage="run", log="log"), "fails in workload bench: status 7"),
)


def test_work_that_is_killed_again_and_again_is_skipped() -> None:
    """Where the host stayed up all the while: most often the kernel had no memory left. A restart is none of its doing."""
    retry = policy(repeat("first"))
    for _ in range(2):
        for _ in range(LOSSES):
            assert isinstance(event := retry.lost(MIDDLE, LOST, "compile", 0.0), Warned)
            assert event.text == "it ended without an exit status: it is repeated"
        retry.succeeded()
    for _ in range(LOSSES):
        retry.lost(MIDDLE, LOST, "compile", 0.0)
    skipped = retry.lost(MIDDLE, LOST, "compile", 0.0)
    assert isinstance(skipped, CandidateSkipped)
    assert (skipped.facts.stage, skipped.facts.log) == ("compile", "/here/jobs")
    assert skipped.facts.reason.startswith(f"it was killed {LOSSES + 1} times in a row")
    retry = policy(map(str, count()))
    for _ in range(LOSSES):
        retry.lost(MIDDLE, LOST, "run", 0.0)
    with pytest.raises(JobLost):
        retry.lost(MIDDLE, LOST, "run", 0.0)


@pytest.mark.parametrize(("failure", "text"), FAILURES)
def test_a_failure_is_the_candidates_unless_nothing_can_be_compared_without_it(
    failure: BuildFailed | RunFailed, text: str
) -> None:
    for end, name in ((GOOD, "the good end"), (BAD, "an end of the range")):
        with pytest.raises(EndFailed, match=f"because {name}, {COMMITS[end][:10]}, {text}"):
            policy(repeat("first")).failed(end, failure, 0.0)
        skipped = policy(repeat("first"), is_range=False).failed(end, failure, 0.0)
        assert (skipped.facts.commit, skipped.facts.reason) == (COMMITS[end], str(failure))
    assert policy(repeat("first")).failed(MIDDLE, failure, 0.0).facts.stage == failure.stage
    with pytest.raises(EnvironmentFailure, match="no space left on host here: "):
        policy(repeat("first"), free=1 << 20).failed(MIDDLE, failure, 0.0)
