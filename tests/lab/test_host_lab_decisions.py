"""The order of a lab's work, its reaction to failed and lost jobs, and checks of a host between measurements."""

from collections.abc import Generator
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import sample_hunt
from labs import lab_of, measure, skipped, warnings, workload_of
from machine import here
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    LabEvent,
    RunFinished,
    RunProgress,
    RunStarted,
    Warned,
)
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.errors import (
    BuildFailed,
    DatasetDamaged,
    EnvironmentFailure,
    JobLost,
    RangeEndFailed,
    RunFailed,
    UsageError,
)
from perfbisect.host import facts, jobs
from perfbisect.host.facts import (
    BOOT,
    PROCESSOR_MODEL,
    Fact,
    fingerprint_facts,
    first_line,
    read_fact,
    read_facts,
    read_fingerprint,
)
from perfbisect.host.local import LocalHost
from perfbisect.host.lock import HostLock, hold_lock
from perfbisect.host.protocol import Host
from perfbisect.hunt import session_hosts
from perfbisect.hunt.session_hosts import processor_warnings
from perfbisect.lab import host_watch
from perfbisect.lab.building.candidates import Candidates
from perfbisect.lab.host_lab import EarlierAttempts, HostLab
from perfbisect.lab.host_watch import LOSSES, HostWatch, WorkRetryPolicy
from perfbisect.lab.workload.dataset import DatasetKeeper
from perfbisect.recipes.builder import Build, Builder, DataFormat, Variant
from perfbisect.wording.quantities import percent
from repos import Repo

pytestmark = pytest.mark.tools

INSTALL = ["sh", "-c", "mkdir -p {prefix} && cp {source}/* {prefix}"]
BUILD = Build(compile=[["sh", "{source}/build"]], install=[INSTALL], artifacts=["bin"])
VARIANTS = {"o2nofp": Variant(cflags="-O2")}
BUILDER = Builder(name="scripts", folder="/nowhere", summary="", driver="command", variants=VARIANTS, build=BUILD)
GOOD, MIDDLE, OTHER, BAD = range(4)
# A step logs its work. It kills its own job as often as the file lose-* says.
STEP = """\
echo {what} {name} >>{folder}/done
left=$(cat {folder}/lose-{what} 2>/dev/null || echo 0)
if [ "$left" -gt 0 ]; then echo $((left - 1)) >{folder}/lose-{what}; kill -9 $(ps -o sid= -p $$); exit; fi
"""
DOES = {"build": "", "load": 'echo loaded >"$1/table"\n', "run": ""}


class Scripts:
    """Four commits, A to D, whose steps build, load and run are scripts. ``fails``: failing steps, as "build B"."""

    def __init__(self, git: Repo, host: Host, folder: Path) -> None:
        self.git, self.host, self.folder = git, host, folder
        load = [["sh", "load", "{data}"]]
        self.workload = workload_of(name="bench", driver="command", command=["sh", "run"], prepare_commands=load)

    def commits(self, *fails: str, **files: dict[str, str]) -> tuple[str, ...]:
        """``files``: the files of a commit beside its scripts, by its letter."""
        return tuple(self.git.commit({"bin": n, **self.scripts(n, fails), **files.get(n, {})}) for n in "ABCD")

    def scripts(self, name: str, fails: tuple[str, ...]) -> dict[str, str]:
        failing = {
            what: f"echo '{what}.c:1:1: error: no {name}'; exit 1\n" for what in DOES if f"{what} {name}" in fails
        }
        steps = DOES | failing
        return {what: STEP.format(what=what, name=name, folder=self.folder) + steps[what] for what in steps}

    def lab(self, commits: tuple[str, ...] = (), builder: Builder = BUILDER, **more: Any) -> HostLab:
        return lab_of(self.host, builder, self.workload, self.git.path, commits or self.commits(), **more)

    def lose(self, what: str, times: int = LOSSES) -> None:
        """The next jobs of the step ``what`` end without an exit status."""
        (self.folder / f"lose-{what}").write_text(f"{times}\n")

    def done(self, what: str = "") -> list[str]:
        """The steps since the last call, such as "build A", "load A" or "run A"."""
        (log := self.folder / "done").touch()
        lines = log.read_text().splitlines()
        log.unlink()
        return [line for line in lines if line.startswith(what)]

    @property
    def datasets(self) -> list[Path]:
        return sorted(Path(self.host.root, "datasets").iterdir())


@pytest.fixture
def scripts(git: Repo, host: LocalHost, tmp_path: Path) -> Scripts:
    return Scripts(git, host, tmp_path)


def runs(events: list[LabEvent]) -> list[int]:
    return [event.candidate for event in events if isinstance(event, RunFinished)]


def test_lab_builds_then_loads_data_then_interleaves_runs(scripts: Scripts) -> None:
    commits = scripts.commits()
    events = measure(lab := scripts.lab(commits), PlannedRuns(BAD, 2), PlannedRuns(GOOD, 1))
    assert scripts.done() == ["build D", "build A", "load A", "run D", "run A", "run D"]
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2, 3]
    measure(lab, PlannedRuns(GOOD, 1))
    assert scripts.done() == ["run A"]
    again = measure(scripts.lab(commits), PlannedRuns(GOOD, 1))
    assert scripts.done() == ["run A"], "a later session finds the build and the data"
    assert [event.facts.reused for event in again if isinstance(event, BuildFinished)] == [True]
    assert [event.reused for event in again if isinstance(event, BuildStarted)] == [True]


def test_candidate_with_a_known_binary_is_not_measured(scripts: Scripts) -> None:
    events = measure(
        scripts.lab(scripts.commits(B={"bin": "A"})), PlannedRuns(GOOD, 0), PlannedRuns(MIDDLE, 1), PlannedRuns(GOOD, 1)
    )
    built = [(event.candidate, event.same_as) for event in events if isinstance(event, BuildFinished)]
    assert (built, runs(events)) == ([(GOOD, None), (MIDDLE, GOOD)], [])


def test_failed_candidate_is_skipped_and_ends_the_order(scripts: Scripts) -> None:
    commits = scripts.commits("load A", "build B", "run C")
    lab = scripts.lab(commits, is_range=False)
    for candidate, stage in ((GOOD, "prepare"), (MIDDLE, "compile"), (OTHER, "run")):
        *_, last = measure(lab, PlannedRuns(candidate, 1), PlannedRuns(BAD, 1))
        assert isinstance(last, CandidateSkipped)
        assert (last.candidate, last.facts.commit, last.facts.stage) == (candidate, commits[candidate], stage)
    assert runs(measure(lab, PlannedRuns(BAD, 1))) == [BAD]


@pytest.mark.parametrize("step", ["load", "run"])
def test_failure_of_an_incremental_build_does_not_skip_its_commit(scripts: Scripts, step: str) -> None:
    lab = scripts.lab(scripts.commits(f"{step} B"))
    measure(lab, PlannedRuns(MIDDLE, 0))
    built = lab.builds.made.built[MIDDLE]
    lab.builds.made.built[MIDDLE] = replace(built, facts=replace(built.facts, incremental=True))
    order = Measure((PlannedRuns(MIDDLE, 1),), Purpose.SEARCH, incremental=True)
    first, second = [*lab.measure(order)], [*lab.measure(order)]
    assert isinstance(first[-1], Warned) and "the incremental build of " in first[-1].text
    assert not lab.builds.made.built[MIDDLE].facts.incremental
    assert skipped(second)


def test_build_that_changed_after_its_end_is_made_again_once(scripts: Scripts) -> None:
    lab, events = scripts.lab(), []
    for event in lab.measure(Measure((PlannedRuns(MIDDLE, 1), PlannedRuns(OTHER, 1)), Purpose.SEARCH)):
        events.append(event)
        if isinstance(event, BuildFinished) and event.candidate == MIDDLE:
            Path(scripts.host.root, "builds", event.facts.key, "prefix", "bin").write_text("changed")
    assert scripts.done("build") == ["build B", "build C", "build B"]
    assert len(warnings(events)) == 1
    assert "have changed since the build ended (./bin)" in skipped(events).reason
    assert runs(measure(lab, PlannedRuns(OTHER, 1))) == [OTHER]


@pytest.mark.parametrize("what", ["build", "load", "run"])
def test_lost_job_is_repeated(scripts: Scripts, what: str) -> None:
    """A job that ends well resets the number of successive losses."""
    lab, last = scripts.lab(), 2
    for _ in range(2 if what == "run" else 1):
        scripts.lose(what)
        events = measure(lab, PlannedRuns(MIDDLE, last))
        assert len(warnings(events)) == LOSSES
        assert all(text.endswith("ended without an exit status; the work is repeated") for text in warnings(events))
        assert runs(events) == [MIDDLE] * last
        assert [event.number for event in events if isinstance(event, RunStarted)][-1] == last


@pytest.fixture
def restarting(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> LocalHost:
    """A host that seems to have restarted each time when its boot is read."""
    boots = count()
    monkeypatch.setattr(
        host_watch, "read_fact", lambda *asked: next(boots) if asked == (host, BOOT) else read_fact(*asked)
    )
    return host


def test_commit_whose_build_is_killed_again_is_skipped(scripts: Scripts, restarting: LocalHost, tmp_path: Path) -> None:
    """The build is killed on the build host. Restarts of the host that measures do not matter."""
    scripts.lose("build", LOSSES + 1)
    events = measure(scripts.lab(build_host=here(tmp_path / "maker", "maker")), PlannedRuns(MIDDLE, 1))
    assert skipped(events).log == f"{tmp_path}/maker/jobs"
    assert scripts.done() == ["build B"] * (LOSSES + 1)


def test_build_for_another_processor_is_a_warning(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = here(tmp_path / "maker", "maker")
    expected = "host maker compiles for its own processor, Quick (model 7), and host here has another: Quick (model 8)"
    for cflags, model, warned in ("-march=native", "8", True), ("-march=native", "7", False), ("-O2", "8", False):
        builder = structs.replace(BUILDER, variants={"o2nofp": Variant(cflags=cflags)})
        known = {(maker, PROCESSOR_MODEL): "Quick (model 7)", (host, PROCESSOR_MODEL): f"Quick (model {model})"}
        monkeypatch.setattr(session_hosts, "read_fact", lambda *asked, known=known: known[asked])
        found = processor_warnings(host, maker, builder, "")
        assert [each.text for each in found] == [expected] * warned


def test_hunt_does_not_resume_with_other_builds_or_data(scripts: Scripts) -> None:
    commits = scripts.commits()
    events = measure(scripts.lab(commits), PlannedRuns(GOOD, 1))
    [built] = [event.facts for event in events if isinstance(event, BuildFinished)]
    [data] = scripts.datasets
    own = EarlierAttempts({commits[GOOD]: built.key}, {commits[GOOD]: f"{data.name}-12345678"})
    assert runs(measure(scripts.lab(commits, earlier=own), PlannedRuns(GOOD, 1))) == [GOOD], (
        "a dataset of the build alone is accepted"
    )
    changed = structs.replace(BUILDER, variants={"o2nofp": Variant(cflags="-O1")})
    with pytest.raises(UsageError, match=f"{commits[GOOD][:10]} would now be built in another way") as caught:
        measure(scripts.lab(commits, changed, earlier=own), PlannedRuns(BAD, 1))
    assert "begin a new hunt" in caught.value.advice
    other = EarlierAttempts(datasets={commits[GOOD]: "0123456789abcdef"})
    with pytest.raises(UsageError, match="other settings or other data than earlier"):
        measure(scripts.lab(commits, earlier=other), PlannedRuns(GOOD, 1))


def test_builds_of_different_data_formats_have_separate_datasets(scripts: Scripts) -> None:
    commits = scripts.commits(A={"format": "1"}, B={"format": "1"}, D={"format": "2"})
    lab = scripts.lab(commits, structs.replace(BUILDER, dataset=DataFormat(format_command=["cat", "{prefix}/format"])))
    events = measure(lab, PlannedRuns(GOOD, 1), PlannedRuns(MIDDLE, 1), PlannedRuns(BAD, 1))
    data = [event.facts.dataset for event in events if isinstance(event, RunFinished)]
    assert len(set(data)) == len(scripts.datasets) == 2
    assert scripts.done("load") == ["load A", "load D"]


def test_jobs_of_a_killed_session_end_before_a_measurement_or_build(scripts: Scripts, tmp_path: Path) -> None:
    commits = scripts.commits()
    measure(scripts.lab(commits), PlannedRuns(GOOD, 1))
    maker = here(tmp_path / "maker", "maker")
    for event, host, lab in (
        (RunStarted, scripts.host, scripts.lab(commits)),
        (BuildFinished, maker, scripts.lab(commits, build_host=maker)),
    ):
        for name in ("run", "build-scripts-another"):
            jobs.start(host, ["sleep", "100"], name=name, timeout=100)
        events = lab.measure(Measure((PlannedRuns(GOOD, 1),), Purpose.SEARCH))
        assert any(isinstance(each, event) for each in events)
        assert not jobs.running_jobs(host)
        events.close()


def test_damaged_dataset_is_loaded_again_once_for_all_builds(scripts: Scripts) -> None:
    lab = scripts.lab()
    measure(lab, PlannedRuns(GOOD, 1), PlannedRuns(BAD, 1))
    [data] = scripts.datasets
    scripts.done()
    (data / "data" / "odd").write_text("")
    events = measure(lab, PlannedRuns(GOOD, 2), PlannedRuns(BAD, 1))
    [warned] = warnings(events)
    assert warned.startswith(f"the dataset {data.name} on host here is damaged: ")
    assert warned.endswith(
        "7 bytes in 2 files were copied, but 7 bytes in 1 files were loaded; the dataset is loaded again"
    )
    assert sorted(runs(events)) == [GOOD, GOOD, BAD]
    assert len(scripts.done("load")) == 1
    (data / "data" / "odd").write_text("")
    with pytest.raises(DatasetDamaged, match="is damaged") as caught:
        measure(lab, PlannedRuns(GOOD, 1))
    assert "may be failing" in caught.value.advice


def test_build_that_refuses_the_dataset_of_another_build_loads_its_own(scripts: Scripts) -> None:
    commits = scripts.commits()
    lab = scripts.lab(commits)
    measure(lab, PlannedRuns(GOOD, 1))  # loads the data
    measure(lab, PlannedRuns(BAD, 0), PlannedRuns(MIDDLE, 0))
    scripts.done()
    [key] = [path.name for path in scripts.datasets]
    keeper = DatasetKeeper(scripts.host, scripts.workload, {})
    failure = RunFailed("unknown format", stage="start", log="log")
    good, middle, last = map(lab._system, (GOOD, MIDDLE, BAD))
    assert list(keeper.ensure_loaded(last)) == []
    assert not keeper.mark_dataset_refused(last, key, RunFailed("it crashed", stage="run", log="log"))
    assert keeper.mark_dataset_refused(last, key, failure)
    [warned] = keeper.ensure_loaded(last)
    own = f"{key}-{last.key[:8]}"
    assert (keeper.keys, scripts.done()) == ({commits[BAD]: own}, ["load D"])
    assert f"{commits[BAD][:10]} does not start on the dataset {key} of another build" in warned.text
    assert warned.text.endswith(f"and gets its own {own}: unknown format")
    assert not keeper.mark_dataset_refused(last, own, failure), "the build has loaded this dataset itself"
    assert not keeper.mark_dataset_refused(good, key, failure)
    assert keeper.mark_dataset_refused(middle, key, failure)
    assert len(list(keeper.ensure_loaded(middle))) == 1
    assert (keeper.keys[commits[MIDDLE]], scripts.done()) == (own, []), "both builds share the new dataset"


ORDER = Measure((PlannedRuns(0, 1),), Purpose.SEARCH)
RAN = RunProgress(0, 1.0, 100.0)


class Events:
    """A measurement that only yields events, once or ``forever``, and raises the exceptions among them."""

    left = False

    def __init__(self, *events: LabEvent | Exception, forever: bool = False) -> None:
        self.events, self.forever = events, forever

    def measure(self, _order: Measure) -> Generator[LabEvent]:
        try:
            for event in cycle(self.events) if self.forever else self.events:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.left = True


@pytest.fixture
def watched(host: LocalHost) -> HostWatch:
    known = read_fingerprint(host, read_facts(host, fingerprint_facts(host)))
    return HostWatch(host, HostLock(host, "mine"), known)


def watch(watched: HostWatch, *events: LabEvent | Exception) -> list[LabEvent]:
    """The events of a watched measurement in which ``events`` happen, by default a run."""
    return list(watched.guard(Events(*events or (RAN,)).measure(ORDER)))


def test_failure_after_loss_of_the_root_folder_names_the_loss(watched: HostWatch) -> None:
    """Both if a candidate is skipped, and if the host cannot measure at all."""
    skip, failure = CandidateSkipped(0, sample_hunt.skip(0)), EnvironmentFailure("no such file")
    with hold_lock(watched.host, "mine") as watched.lock:
        assert watch(watched, skip) == [skip]
        with pytest.raises(EnvironmentFailure, match="no such file"):
            watch(watched, failure)
        watched.host.run(["rm", "-r", str(watched.host.root)])
        for event in (skip, failure):
            with pytest.raises(EnvironmentFailure, match=r"root folder .* of host .* was removed"):
                watch(watched, event)


def echo(value: object) -> Fact[str]:
    return Fact(("echo", str(value)), first_line)


def warned_of(watched: HostWatch, *events: LabEvent) -> list[Warned]:
    """The warnings of a watched measurement in which ``events`` happen."""
    return [event for event in watch(watched, *events) if isinstance(event, Warned)]


def test_change_on_the_host_is_a_warning_once(watched: HostWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes: a setting, throttling by heat, and little free disk. A full disk ends the measurement."""
    watched.facts = replace(watched.facts, settings={**watched.facts.settings, "governor": "performance"})
    monkeypatch.setitem(host_watch.SET, "governor", echo("powersave"))
    [warned] = warned_of(watched)
    assert warned.text == "host here has changed during this hunt: its governor was performance and is powersave"
    assert watch(watched) == [RAN]
    for times, texts in ((700, 0), (700, 0), (712, 1), (712, 0)):
        throttled = Fact(("echo", str(times)), int)
        monkeypatch.setattr(host_watch, "THROTTLED", throttled)
        monkeypatch.setattr(host_watch, "PASSING", (throttled,))
        assert ["12 times" in warning.text for warning in warned_of(watched)] == [True] * texts
    for mib, texts in ((2000, 1), (2000, 0)):
        monkeypatch.setattr(host_watch, "free_bytes_fact", lambda root, mib=mib: Fact(("echo", str(mib << 20)), int))
        assert ["bisect gc here" in warning.advice for warning in warned_of(watched)] == [True] * texts
    monkeypatch.setattr(host_watch, "free_bytes_fact", lambda root: Fact(("echo", str(100 << 20)), int))
    with pytest.raises(EnvironmentFailure, match="the disk of host here is full: only 100 MiB are free") as caught:
        watch(watched)
    assert "bisect gc here" in caught.value.advice


def test_no_event_counts_after_the_lock_of_the_host_is_lost(watched: HostWatch) -> None:
    """Also, no further measurement begins."""
    events, counted = Events(RAN, forever=True), list[LabEvent]()
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match="another session has taken the host"):
            for event in watched.guard(events.measure(ORDER)):
                counted.append(event)
                watched.lock.lost = True
        assert counted == [RAN]
    assert events.left, "the lab has tidied up"


def test_a_client_that_limits_the_server_is_a_warning_once(watched: HostWatch) -> None:
    facts = sample_hunt.run(0, 0.0)
    for share, times in ((0.49, 0), (0.5, 1)):
        busy = RunFinished(0, replace(facts, counters={**facts.counters, "client-busy": share}))
        found = [event.text for event in (*warned_of(watched, busy, busy), *warned_of(watched))]
        assert [f"the client itself uses {percent(share)} of the measured time" in text for text in found] == [
            True
        ] * times


def test_build_that_misses_the_insert_rate_is_a_warning_once(watched: HostWatch) -> None:
    """The runs of a visit count together: a run that is slightly below the rate is no reason for a warning."""

    def ran(done: float, **changes: str) -> RunFinished:
        counters = {"insert-due": 1000.0, "insert-rate": 100.0, "insert-done": done}
        return RunFinished(0, replace(sample_hunt.run(0, 0.0), counters=counters, **changes))

    assert not warned_of(watched, ran(985.0), ran(1000.0))
    found = warned_of(watched, ran(871.0), ran(871.0), ran(871.0, build_key="other", commit="b" * 40))
    assert [each.text.partition(" ")[0] for each in found] == [sample_hunt.run(0, 0.0).commit[:10], "b" * 10]
    assert all("it sustains 87.1 of 100 rows per second (insert)" in each.text for each in found)


COMMITS = tuple(letter * 40 for letter in "abcd")


def policy(host: Host, *, is_range: bool = True) -> WorkRetryPolicy:
    candidates = Candidates(None, COMMITS, Commit, ends={COMMITS[GOOD]: "the good revision"}, is_range=is_range)
    return WorkRetryPolicy(host, candidates, "bench")


LOST = JobLost("it ended without an exit status")


def test_candidate_whose_job_is_killed_repeatedly_is_skipped(restarting: LocalHost, tmp_path: Path) -> None:
    """Only if the host did not restart: then the kernel most often killed the job because memory was short."""
    retry, restarted = policy(here(tmp_path)), policy(restarting)
    for _ in range(LOSSES):
        for each in (retry, restarted):
            assert isinstance(each.lost_work_event(MIDDLE, LOST, "compile", 0.0), Warned)
    skipped = retry.lost_work_event(MIDDLE, LOST, "compile", 0.0)
    assert isinstance(skipped, CandidateSkipped)
    assert (skipped.facts.stage, skipped.facts.log) == ("compile", f"{tmp_path}/jobs")
    assert skipped.facts.reason.startswith(f"the run was killed {LOSSES + 1} times in succession")
    with pytest.raises(JobLost):
        restarted.lost_work_event(MIDDLE, LOST, "compile", 0.0)


def test_failure_skips_a_candidate_but_ends_the_hunt_at_an_end(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failure, text in (
        (BuildFailed("a.c:1: error", stage="compile", log="log"), "cannot be built: a.c:1: error"),
        (RunFailed("status 7", stage="run", log="log"), "fails in workload bench: status 7"),
    ):
        for end, name in ((GOOD, "the good revision"), (BAD, "an end of the range")):
            with pytest.raises(RangeEndFailed, match=f"because {name}, {COMMITS[end][:10]}, {text}"):
                policy(host).skip_event(end, failure, 0.0)
            skipped = policy(host, is_range=False).skip_event(end, failure, 0.0)
            assert (skipped.facts.commit, skipped.facts.reason) == (COMMITS[end], str(failure))
        assert policy(host).skip_event(MIDDLE, failure, 0.0).facts.stage == failure.stage
        with monkeypatch.context() as full, pytest.raises(EnvironmentFailure, match="the disk of host here is full: "):
            full.setattr(facts, "free_bytes_fact", lambda _: Fact(("echo", str(1 << 20)), int))
            policy(host).skip_event(MIDDLE, failure, 0.0)
