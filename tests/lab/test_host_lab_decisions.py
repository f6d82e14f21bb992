"""What a lab does after failures and losses, and in which order it works: on a machine that exists in dictionaries."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from fake_machine import BUILDER, RUN_SECONDS, FakeMachine, workload
from labs import lab_of, measure, skipped, warnings
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    LabEvent,
    RunFinished,
    RunStarted,
)
from perfbisect.core.domain.orders import Share
from perfbisect.errors import DataDamaged, EnvironmentFailure, JobLost, RunFailed, UsageError
from perfbisect.hunt.build_hosts import other_processor
from perfbisect.lab.guarded_lab import LOSSES
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.lab.workload.dataset import DatasetKeeper
from perfbisect.recipes.builder import Dataset, Variant
from perfbisect.repository.git import Repository

COMMITS = tuple(letter * 40 for letter in "abcd")
GOOD, MIDDLE, OTHER, BAD = range(4)
A, B, C, D = COMMITS
REPOSITORY = Repository(Path("/repo/.git"), Path("/repo/.git/objects"), "sha1")


@pytest.fixture(autouse=True)
def no_submodules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository is none."""
    monkeypatch.setattr("perfbisect.lab.build.checkout.submodules", lambda *_: ())


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def open_lab(machine: FakeMachine, **more: object) -> HostLab:
    return lab_of(machine, BUILDER, workload(), REPOSITORY, COMMITS, **more)  # type: ignore[arg-type]


def runs(events: list[LabEvent]) -> list[int]:
    return [event.candidate for event in events if isinstance(event, RunFinished)]


def test_builds_come_first_then_data_then_runs_in_turns(machine: FakeMachine) -> None:
    lab = open_lab(machine)
    events = measure(lab, Share(BAD, 2), Share(GOOD, 1))
    assert machine.done == [f"build {D}", f"build {A}", f"load {A}", f"run {D}", f"run {A}", f"run {D}"]
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2, 3]
    assert {event.facts.seconds for event in events if isinstance(event, RunFinished)} == {RUN_SECONDS}
    machine.done.clear()
    measure(lab, Share(GOOD, 1))
    assert machine.done == [f"run {A}"]
    machine.done.clear()
    again = measure(open_lab(machine), Share(GOOD, 1))
    assert machine.done == [f"run {A}"], "a later session finds the build and the data"
    assert [event.facts.reused for event in again if isinstance(event, BuildFinished)] == [True]
    assert [event.reused for event in again if isinstance(event, BuildStarted)] == [True]


def test_the_same_binary_is_not_measured_twice(machine: FakeMachine) -> None:
    machine.binaries = {B: A}
    lab = open_lab(machine)
    measure(lab, Share(GOOD, 1))
    events = measure(lab, Share(MIDDLE, 1), Share(GOOD, 1))
    [built] = [event for event in events if isinstance(event, BuildFinished)]
    assert (built.candidate, built.same_as) == (MIDDLE, GOOD)
    assert not runs(events)


@pytest.mark.parametrize(("fault", "stage"), [("broken", "compile"), ("unloadable", "prepare"), ("failing", "run")])
def test_a_candidate_that_fails_is_skipped_and_ends_the_order(machine: FakeMachine, fault: str, stage: str) -> None:
    setattr(machine, fault, {B})
    lab = open_lab(machine)
    *_, last = measure(lab, Share(MIDDLE, 1), Share(OTHER, 1))
    assert isinstance(last, CandidateSkipped)
    assert (last.candidate, last.facts.commit, last.facts.stage) == (MIDDLE, B, stage)
    assert runs(measure(lab, Share(OTHER, 1))) == [OTHER]


@pytest.mark.parametrize("fault", ["broken", "failing"])
def test_a_full_disk_is_never_a_candidates_fault(machine: FakeMachine, fault: str) -> None:
    setattr(machine, fault, {B})
    machine.free = 1 << 20
    with pytest.raises(EnvironmentFailure, match="no space left on host here: "):
        measure(open_lab(machine), Share(MIDDLE, 1))


@pytest.mark.parametrize(
    ("fault", "text"), [("broken", "cannot be built: .*does not compile"), ("failing", "fails in workload bench: ")]
)
def test_nothing_can_be_compared_without_an_end(machine: FakeMachine, fault: str, text: str) -> None:
    setattr(machine, fault, {A, D})
    lab = open_lab(machine, ends={A: "the good end"})
    with pytest.raises(EnvironmentFailure, match=f"because the good end, {A[:10]}, {text}") as caught:
        measure(lab, Share(GOOD, 1))
    assert "See " in caught.value.advice
    with pytest.raises(EnvironmentFailure, match=f"because an end of the range, {D[:10]}, {text}"):
        measure(lab, Share(BAD, 1))
    independent = open_lab(machine, is_range=False)
    assert skipped(measure(independent, Share(GOOD, 1))).commit == A


def test_a_build_that_changes_though_nothing_runs_is_made_again_once(machine: FakeMachine) -> None:
    machine.changing = {B}
    lab = open_lab(machine)
    events = measure(lab, Share(MIDDLE, 1), Share(OTHER, 1))
    assert machine.done == [f"build {B}", f"build {C}", f"build {B}"]
    assert len(warnings(events)) == 1
    assert "have changed since it was made (./bin)" in skipped(events).reason
    assert runs(measure(lab, Share(OTHER, 1))) == [OTHER]


@pytest.mark.parametrize("what", ["build", "load", "run"])
def test_work_that_was_lost_is_repeated(machine: FakeMachine, what: str) -> None:
    machine.to_lose[what] = LOSSES
    events = measure(open_lab(machine), Share(MIDDLE, 2))
    assert len(warnings(events)) == LOSSES
    assert all(text.endswith("ended without an exit status: it is repeated") for text in warnings(events))
    assert runs(events) == [MIDDLE, MIDDLE]
    assert not any(isinstance(event, CandidateSkipped) for event in events)
    assert [event.number for event in events if isinstance(event, RunStarted)][-1] == 2


@pytest.mark.parametrize(("what", "stage"), [("build", "compile"), ("load", "prepare"), ("run", "run")])
def test_work_that_is_killed_again_and_again_is_skipped(machine: FakeMachine, what: str, stage: str) -> None:
    """The host stayed up all the while: most often the kernel had no memory left."""
    machine.to_lose[what] = LOSSES + 1
    events = measure(open_lab(machine), Share(MIDDLE, 1))
    assert len(warnings(events)) == LOSSES
    facts = skipped(events)
    assert (facts.stage, facts.log) == (stage, "/here/jobs")
    assert facts.reason.startswith(f"it was killed {LOSSES + 1} times in a row")


def test_a_run_that_ends_well_ends_a_row_of_losses(machine: FakeMachine) -> None:
    lab = open_lab(machine)
    for _ in range(2):
        machine.to_lose["run"] = LOSSES
        assert runs(measure(lab, Share(MIDDLE, 1))) == [MIDDLE]


@pytest.mark.parametrize("what", ["build", "load", "run"])
def test_a_host_that_restarts_again_and_again_ends_the_hunt(what: str) -> None:
    machine = FakeMachine(boots=[f"boot {number}" for number in range(9)])
    machine.to_lose[what] = LOSSES + 1
    with pytest.raises(JobLost):
        measure(open_lab(machine), Share(MIDDLE, 1))


@pytest.mark.parametrize("restarted", ["here", "maker"])
def test_builds_are_lost_with_the_host_that_builds(restarted: str) -> None:
    """Whether a commit gets itself killed depends on the restarts of that host alone."""
    boots = {name: ["first", "second"] if name == restarted else ["first"] for name in ("here", "maker")}
    maker = FakeMachine("maker", boots["maker"])
    here = FakeMachine("here", boots["here"], builds_of=maker)
    lab = open_lab(here, build_host=maker)
    assert runs(measure(lab, Share(GOOD, 1))) == [GOOD]
    assert (maker.done, here.done) == ([f"build {A}"], [f"load {A}", f"run {A}"])
    maker.to_lose["build"] = LOSSES + 1
    if restarted == "maker":
        with pytest.raises(JobLost):
            measure(lab, Share(MIDDLE, 1))
    else:
        assert skipped(measure(lab, Share(MIDDLE, 1))).log == "/maker/jobs"


@pytest.mark.parametrize(
    ("cflags", "model", "warned"), [("-march=native", "8", True), ("-march=native", "7", False), ("-O2", "8", False)]
)
def test_a_build_for_another_processor_is_warned_of(cflags: str, model: str, *, warned: bool) -> None:
    maker = FakeMachine("maker")
    here = FakeMachine("here")
    for machine, number in ((maker, "7"), (here, model)):
        cpu = {"On-line CPU(s) list:": "0-3", "Model name:": "Quick", "Model:": number}
        fields = [{"field": field, "data": data} for field, data in cpu.items()]
        machine.answers["lscpu*"] = json.dumps({"lscpu": fields})
    builder = structs.replace(BUILDER, variants={"o2nofp": Variant(cflags=cflags)})
    expected = "host maker compiles for its own processor, Quick (model 7), and host here has another: Quick (model 8)"
    assert [each.text for each in other_processor(here, maker, builder, "")] == ([expected] if warned else [])


def test_a_hunt_does_not_go_on_with_other_builds(machine: FakeMachine) -> None:
    events = measure(open_lab(machine), Share(GOOD, 1))
    [built] = [event.facts for event in events if isinstance(event, BuildFinished)]
    assert runs(measure(open_lab(machine, earlier=Earlier({A: built.key})), Share(GOOD, 1))) == [GOOD]
    with pytest.raises(UsageError, match=f"{A[:10]} would now be built differently") as caught:
        other = structs.replace(BUILDER, variants={"o2nofp": Variant(cflags="-O1")})
        measure(replace(open_lab(machine, earlier=Earlier({A: built.key})), builder=other), Share(BAD, 1))
    assert "begin a new hunt" in caught.value.advice


def test_a_hunt_does_not_go_on_with_other_data(machine: FakeMachine) -> None:
    measure(open_lab(machine), Share(GOOD, 1))
    [key] = machine.datasets
    own = open_lab(machine, earlier=Earlier(datasets={A: f"{key}-12345678"}))
    assert runs(measure(own, Share(GOOD, 1))) == [GOOD], "data of its own is of the same kind"
    with pytest.raises(UsageError, match="other settings or data than before"):
        measure(open_lab(machine, earlier=Earlier(datasets={A: "0123456789abcdef"})), Share(GOOD, 1))


def test_builds_of_different_formats_have_data_of_their_own(machine: FakeMachine) -> None:
    machine.formats = {A: "1", B: "1", D: "2"}
    lab = replace(open_lab(machine), builder=structs.replace(BUILDER, dataset=Dataset(format_command=["./format"])))
    events = measure(lab, Share(GOOD, 1), Share(MIDDLE, 1), Share(BAD, 1))
    data = [event.facts.dataset for event in events if isinstance(event, RunFinished)]
    assert len(set(data)) == len(machine.datasets) == 2
    assert [step for step in machine.done if step.startswith("load")] == [f"load {A}", f"load {D}"]


def test_no_build_of_a_killed_session_runs_beside_a_measurement_or_another_build(machine: FakeMachine) -> None:
    left = ["20200101-000000-build-fake-another-abcdef", "20200101-000000-run-abcdef"]
    ended = ["kill 20200101-000000-run-abcdef", "kill 20200101-000000-build-fake-another-abcdef"]
    measure(open_lab(machine), Share(GOOD, 1))
    machine.done.clear()
    machine.running = [*left]
    events = measure(open_lab(machine), Share(GOOD, 1))
    assert machine.done == [*ended, f"run {A}"]
    said = "a job of an earlier session on host here, a load, was still running and has been ended"
    assert warnings(events) == [said]
    maker = FakeMachine("maker")
    maker.running = left
    measure(open_lab(FakeMachine("here", builds_of=maker), build_host=maker), Share(MIDDLE, 1))
    assert maker.done == [*ended, f"build {B}"]


def test_damaged_data_is_loaded_again_once_for_all_that_share_it(machine: FakeMachine) -> None:
    lab = open_lab(machine)
    measure(lab, Share(GOOD, 1), Share(BAD, 1))
    [key] = machine.datasets
    machine.damaged = {key}
    machine.done.clear()
    events = measure(lab, Share(GOOD, 2), Share(BAD, 2))
    assert [text.partition(":")[0] for text in warnings(events)] == [f"the loaded data {key} on host here is damaged"]
    assert warnings(events)[0].endswith(
        "100 bytes in 2 files were copied, but 100 bytes in 1 files were loaded: it is loaded again"
    )
    assert sorted(runs(events)) == [GOOD, GOOD, BAD, BAD]
    assert sum(step.startswith("load") for step in machine.done) == 1
    machine.damaged = {key}
    with pytest.raises(DataDamaged, match="is damaged") as caught:
        measure(lab, Share(GOOD, 1))
    assert "may be failing" in caught.value.advice


def test_a_build_that_refuses_the_data_of_another_loads_its_own(machine: FakeMachine) -> None:
    keeper = DatasetKeeper(machine, workload(), {})
    lab = open_lab(machine)
    measure(lab, Share(GOOD, 1))  # loads the data
    measure(lab, Share(BAD, 1), Share(MIDDLE, 1))
    machine.done.clear()
    [key] = machine.datasets
    first, middle, last = (lab._system(candidate) for candidate in (GOOD, MIDDLE, BAD))
    failure = RunFailed("unknown format", stage="start", log="log")
    assert list(keeper.load(last)) == []
    assert not keeper.refuse(last, key, RunFailed("it crashed", stage="run", log="log"))
    assert keeper.refuse(last, key, failure)
    [warned] = keeper.load(last)
    own = f"{key}-{last.key[:8]}"
    assert keeper.keys == {D: own}
    assert f"{D[:10]} does not start on the data {key}" in warned.text
    assert warned.text.endswith(f"is given {own}: unknown format")
    assert machine.done == [f"load {D}"]
    assert not keeper.refuse(last, own, failure), "it has loaded that itself"
    assert not keeper.refuse(first, key, failure)
    assert keeper.refuse(middle, key, failure)
    [warned] = keeper.load(middle)
    assert (keeper.keys[B], machine.done) == (own, [f"load {D}"]), "which serves all that are like it"
