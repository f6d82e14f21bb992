"""The whole lab on a small library in C: real git, gcc, ccache, sysbench and perf."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.core.event import (
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
from perfbisect.core.measurement import RunFacts
from perfbisect.core.order import Measure, Purpose, Share
from perfbisect.errors import DataDamaged, EnvironmentFailure, JobLost, UsageError
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab import visit
from perfbisect.lab.lab import KEPT, LOSSES, HostLab
from perfbisect.recipes.builder import Build, Builder, Dataset, Variant, When
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Option, Workload

pytestmark = pytest.mark.tools

HERE = Path(__file__).parent
FAST, SLOW, SAME, BROKEN, CRASHING = range(5)

BUILDER = Builder(
    name="small",
    folder=str(HERE),
    summary="",
    driver="small",
    library="libsmall.so",
    variants={"o2nofp": Variant(cflags="-O2")},
    build=Build(
        compile=[["sh", "-c", "$CC {cflags} -fPIC -c {source}/library.c -o library.o"]],
        install=[["sh", "-c", "mkdir -p {prefix} && gcc -shared library.o -o {prefix}/libsmall.so"]],
        artifacts=["libsmall.so"],
        env={"CC": "{cc}"},
    ),
)


def workload(args: dict[str, Option] | None = None) -> Workload:
    return Workload(
        name="operation",
        suite="small",
        folder=str(HERE),
        driver="small",
        summary="",
        group="point",
        script="operation.lua",
        args=args or {},
        prepare_script="operation.lua",
        warmup=0.1,
        time=1.0,
    )


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    root = tmp_path / "root"
    root.mkdir()
    return LocalHost("here", PurePosixPath(root))


@pytest.fixture
def commits(tmp_path: Path, git: Callable[..., str]) -> tuple[str, ...]:
    """A fast commit, one half as fast, one with the fast one's code, one that does not compile, one that crashes; and an end."""
    repo = tmp_path / "repo"
    shutil.copy(HERE / "library.c", repo)
    hashes = []
    for text in (
        "#define ROUNDS 20000\n",
        "#define ROUNDS 40000\n",
        "/* as before */\n#define ROUNDS 20000\n",
        "#define ROUNDS rounds\n",
        "#define ROUNDS (*(volatile uint64_t *)0)\n",
        "#define ROUNDS 80000\n",
    ):
        (repo / "rounds.h").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", "change")
        hashes.append(git("rev-parse", "HEAD"))
    return tuple(hashes)


Open = Callable[..., HostLab]


@pytest.fixture
def open_lab(host: LocalHost, commits: tuple[str, ...], tmp_path: Path) -> Open:
    def lab(args: dict[str, Option] | None = None, **entry: str) -> HostLab:
        return HostLab(
            host=host,
            entry=HostEntry(name="here", **entry),  # type: ignore[arg-type]
            builder=BUILDER,
            variant="",
            workload=workload(args),
            repository=tmp_path / "repo",
            commits=commits,
            describe=lambda sha: Commit(sha, "2020-01-02", "Test", "change"),
        )

    return lab


def measure(lab: HostLab, *shares: Share) -> list[LabEvent]:
    return list(lab.measure(Measure(shares, Purpose.SEARCH)))


def finished(events: list[LabEvent]) -> list[tuple[int, RunFacts]]:
    return [(event.candidate, event.facts) for event in events if isinstance(event, RunFinished)]


def test_two_builds_take_turns_and_every_run_is_told_in_full(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab(client_cpus="0")
    events = measure(lab, Share(SLOW, 2), Share(FAST, 1))
    assert [type(event) for event in events[:1]] == [BuildStarted]
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2, 3]
    runs = finished(events)
    assert [candidate for candidate, _ in runs] == [SLOW, FAST, SLOW]
    (_, first), (_, fast), (_, second) = runs
    assert first.visit != second.visit, "an embedded library starts afresh for each run"
    assert first.commit == second.commit != fast.commit
    assert fast.qps / first.qps == pytest.approx(2, rel=0.5)
    clock = fast.counters["task-clock"]
    assert clock is not None
    assert fast.seconds == pytest.approx(1.0, abs=0.05)
    assert clock <= 1000 * fast.seconds * 1.02, "perf counted the window and no more"
    assert set(fast.system) >= {"us", "cs"}
    assert len(fast.samples) == 1
    assert fast.dataset
    assert not list(Path(host.root, "jobs").iterdir()), "what ended well is put away"
    assert not jobs.running(host)

    again = measure(lab, Share(FAST, 1))
    assert not [event for event in again if isinstance(event, BuildStarted)], "built once"
    assert len(finished(again)) == 1


def test_conditions_reach_the_library_that_is_measured_and_its_data(
    open_lab: Open, tmp_path: Path, git: Callable[..., str]
) -> None:
    """The commit's version changes where the library is, and the format of its data."""
    (tmp_path / "repo" / "VERSION").write_text("2.0\n")
    (tmp_path / "repo" / "rounds.h").write_text("#define ROUNDS 1000\n")
    git("add", ".")
    git("commit", "-q", "-m", "new layout")
    install = "mkdir -p {prefix}/v{version} && gcc -shared library.o -o {prefix}/v{version}/new.so"
    change = {
        "library": "v2.0/new.so",
        "build": {"install": [["sh", "-c", install]], "artifacts": ["v2.0/new.so"]},
        "dataset": {"format": "2"},
    }
    conditional = replace(BUILDER, version=["cat", "{source}/VERSION"], when=[When(version=">=2", change=change)])
    for _ in ("built", "found built"):
        lab = open_lab()
        lab.commits = (lab.commits[FAST], git("rev-parse", "HEAD"))
        lab.builder = conditional
        runs = dict(finished(measure(lab, Share(1, 1), Share(0, 1))))
        assert runs[1].qps > 2 * runs[0].qps
        assert runs[1].dataset != runs[0].dataset


def test_a_hunt_does_not_go_on_with_other_builds(open_lab: Open) -> None:
    lab = open_lab()
    events = measure(lab, Share(FAST, 1))
    known = {event.facts.commit: event.facts.key for event in events if isinstance(event, BuildFinished)}
    unchanged, changed = open_lab(), open_lab()
    unchanged.known = changed.known = known
    changed.builder = replace(BUILDER, variants={"o2nofp": Variant(cflags="-O1")})
    assert len(finished(measure(unchanged, Share(FAST, 1)))) == 1
    with pytest.raises(UsageError, match="built in another way"):
        measure(changed, Share(SLOW, 1))


def test_a_hunt_does_not_go_on_with_other_settings_or_data(open_lab: Open) -> None:
    lab = open_lab()
    ((_, run),) = finished(measure(lab, Share(FAST, 1)))
    again = open_lab()
    again.loaded = {run.commit: f"{run.dataset}-12345678"}
    assert len(finished(measure(again, Share(FAST, 1)))) == 1, "data of its own is of the same kind"
    changed = open_lab()
    changed.loaded = {run.commit: "0123456789abcdef"}
    with pytest.raises(UsageError, match="other settings or data than before"):
        measure(changed, Share(FAST, 1))


def test_a_build_is_asked_what_format_its_data_has(open_lab: Open) -> None:
    lab = open_lab()
    lab.builder = replace(BUILDER, dataset=Dataset(format_command=["sha256sum", "{prefix}/libsmall.so"]))
    runs = dict(finished(measure(lab, Share(SLOW, 1), Share(FAST, 1))))
    assert runs[SLOW].dataset != runs[FAST].dataset


def test_damaged_data_is_loaded_again_but_not_for_ever(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    ((_, run),) = finished(measure(lab, Share(FAST, 1)))
    kept = Path(host.root, "datasets", run.dataset, "data")

    def one_file_more() -> None:
        (kept / "more").write_text("more")

    one_file_more()
    events = measure(lab, Share(FAST, 1))
    (said,) = [event.text for event in events if isinstance(event, Warned)]
    assert re.search(r"is damaged: [\d,]+ bytes in \d+ files were copied, but .* were loaded: it is loaded again", said)
    assert [again.dataset for _, again in finished(events)] == [run.dataset]
    one_file_more()
    with pytest.raises(DataDamaged, match="is damaged") as caught:
        measure(lab, Share(FAST, 1))
    assert "may be failing" in caught.value.advice


def test_damaged_data_is_loaded_again_for_all_that_share_it(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    first = finished(measure(lab, Share(SLOW, 1), Share(FAST, 1)))
    kept = Path(host.root, "datasets", first[0][1].dataset, "data")
    (kept / "more").write_text("more")
    again = finished(measure(lab, Share(SLOW, 2), Share(FAST, 2)))
    assert sorted(candidate for candidate, _ in again) == sorted([SLOW, SLOW, FAST, FAST])


def test_the_same_binary_is_not_measured_twice(open_lab: Open) -> None:
    lab = open_lab()
    measure(lab, Share(FAST, 1))
    events = measure(lab, Share(SAME, 1), Share(FAST, 1))
    (built,) = [event for event in events if isinstance(event, BuildFinished)]
    assert (built.candidate, built.same_as) == (SAME, FAST)
    assert not finished(events)


def test_a_candidate_that_does_not_compile_is_skipped(open_lab: Open) -> None:
    *_, last = measure(open_lab(), Share(BROKEN, 1), Share(FAST, 1))
    assert isinstance(last, CandidateSkipped)
    assert (last.candidate, last.facts.stage) == (BROKEN, "compile")
    assert "rounds" in last.facts.reason


def test_a_candidate_that_crashes_is_skipped_with_its_log(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    measure(lab, Share(FAST, 1))  # makes the data
    *_, last = measure(lab, Share(CRASHING, 1), Share(FAST, 1))
    assert isinstance(last, CandidateSkipped)
    assert (last.candidate, last.facts.stage) == (CRASHING, "run")
    assert "Segmentation fault" in last.facts.reason
    assert Path(last.facts.log).is_file()
    assert not jobs.running(host)


def test_a_full_disk_is_never_a_candidates_fault(open_lab: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfbisect.lab.lab.is_full", lambda host: True)
    with pytest.raises(EnvironmentFailure, match=r"no space left on host here: \w{10} cannot be measured: .*compile"):
        measure(open_lab(), Share(BROKEN, 1))


def test_nothing_can_be_measured_when_the_good_end_fails(open_lab: Open) -> None:
    lab = open_lab({"broken": True})
    lab.ends = {lab.commits[FAST]: "the good end"}
    with pytest.raises(
        EnvironmentFailure, match=r"the good end, \w{10}, fails in workload operation: .*broken on purpose"
    ) as caught:
        measure(lab, Share(FAST, 1))
    assert "See " in caught.value.advice


def test_an_end_that_does_not_compile_is_told_with_its_first_error_and_its_log(open_lab: Open) -> None:
    lab = open_lab()
    lab.commits = (lab.commits[FAST], lab.commits[SLOW], lab.commits[BROKEN])
    lab.ends = {lab.commits[-1]: "the bad end"}
    with pytest.raises(
        EnvironmentFailure, match=r"the bad end, \w{10}, cannot be built: .*not compile: \S+:\d+:.* error: .*rounds"
    ) as caught:
        measure(lab, Share(2, 1), Share(0, 1))
    assert Path(caught.value.advice.removeprefix("See ").removesuffix(".")).is_file()


def test_folders_of_jobs_do_not_pile_up(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    left = Path(host.root, "jobs")
    for number in range(KEPT + 20):
        Path(left, f"20200101-{number:06}-run-abcdef").mkdir(parents=True)
    Path(host.root, "tmp").mkdir()
    Path(host.root, "tmp", "of a compiler that was killed").touch()
    measure(lab, Share(FAST, 1))
    assert len(list(left.iterdir())) == KEPT
    assert not list(Path(host.root, "tmp").iterdir())


def test_a_measurement_that_is_given_up_leaves_nothing_running(open_lab: Open, host: LocalHost) -> None:
    events = open_lab().measure(Measure((Share(FAST, 1),), Purpose.SEARCH))
    assert any(isinstance(event, RunStarted) for event in events)
    events.close()  # type: ignore[attr-defined]
    assert not jobs.running(host)


def test_an_interruption_in_the_middle_of_a_run_leaves_nothing_running(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    events = lab.measure(Measure((Share(FAST, 2),), Purpose.SEARCH))
    assert any(isinstance(event, RunProgress | RunFinished) for event in events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert not jobs.running(host)


def test_without_perf_and_vmstat_there_is_still_qps(
    open_lab: Open, host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for program in {*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()}:
        if program.name not in ("perf", "vmstat") and not (tmp_path / "bin" / program.name).exists():
            (tmp_path / "bin" / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ((_, run),) = finished(measure(open_lab(), Share(FAST, 1)))
    assert run.qps > 0
    assert run.counters == {}
    assert run.system == {}


def test_what_a_killed_session_left_running_is_ended(open_lab: Open, host: LocalHost) -> None:
    jobs.start(host, ["sleep", "100"], name="run", timeout=200)
    jobs.start(host, ["sleep", "100"], name="build-small-of-another-commit", timeout=200)
    measure(open_lab(), Share(BROKEN, 1))
    assert jobs.running(host) == ()


def test_a_build_of_a_killed_session_is_followed_to_its_end(
    open_lab: Open, host: LocalHost, commits: tuple[str, ...], tmp_path: Path
) -> None:
    """The build waits for a word, so that it cannot be over before the next session looks."""
    go, begun = tmp_path / "go", tmp_path / "begun"
    wait = f"echo >>{begun}; until [ -e {go} ]; do sleep 0.05; done; "
    patient = replace(BUILDER.build, compile=[["sh", "-c", wait + BUILDER.build.compile[0][2]]])

    def session() -> Iterator[LabEvent]:
        lab = open_lab()
        lab.builder = replace(BUILDER, build=patient)
        return lab.measure(Measure((Share(FAST, 1),), Purpose.SEARCH))

    killed = os.fork()
    if not killed:
        list(session())
        os._exit(0)
    while not begun.exists():
        time.sleep(0.02)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    [left] = jobs.running(host)
    events = []
    for event in session():
        events.append(event)
        go.touch()
        if isinstance(event, BuildFinished):
            break
    assert begun.read_text() == "\n"
    assert jobs.running(host) == ()
    assert not Path(left.folder).exists()


def lose_jobs(host: LocalHost) -> None:
    for job in jobs.running(host):
        os.killpg(job.pid, signal.SIGKILL)


def test_work_that_was_lost_with_its_host_is_done_again(open_lab: Open, host: LocalHost) -> None:
    """Leaders that are killed leave no status, as after a restart of the host."""
    events = []
    for event in open_lab().measure(Measure((Share(FAST, 2),), Purpose.SEARCH)):
        events.append(event)
        if isinstance(event, RunStarted) and event.number == 2 and not any(isinstance(e, Warned) for e in events):
            threading.Timer(0.6, lose_jobs, [host]).start()
    warned = [event for event in events if isinstance(event, Warned)]
    assert len(warned) == 1
    assert "done again" in warned[0].text
    assert len(finished(events)) == 2
    assert not any(isinstance(event, CandidateSkipped) for event in events)


def test_work_that_gets_itself_killed_is_skipped(
    open_lab: Open, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that stayed up all the time did not lose it: most often the kernel had no memory left."""

    def lose(_: object) -> Generator[RunProgress, None, RunFacts]:
        raise JobLost("job run is gone")
        yield

    monkeypatch.setattr(visit, "run", lose)
    events = list(open_lab().measure(Measure((Share(SLOW, 1),), Purpose.SEARCH)))
    assert len([event for event in events if isinstance(event, Warned)]) == LOSSES
    assert isinstance(events[-1], CandidateSkipped)
    assert "killed 4 times" in events[-1].facts.reason


def shut_down(host: LocalHost, name: str) -> None:
    """TERM for every process of the jobs of that name, the leaders last."""
    for job in jobs.running(host):
        if job.name.startswith(name):
            table = subprocess.run(["ps", "-o", "pid=", "-s", str(job.pid)], capture_output=True, text=True, check=True)
            for pid in sorted(map(int, table.stdout.split()), reverse=True):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def test_an_orderly_shutdown_is_held_against_no_commit(open_lab: Open, host: LocalHost, tmp_path: Path) -> None:
    """In a build, and in a run."""
    lab, begun = open_lab(), tmp_path / "begun"
    pause = ["sh", "-c", f"if [ ! -e {begun} ]; then touch {begun}; sleep 60; fi"]
    lab.builder = replace(BUILDER, build=replace(BUILDER.build, compile=[pause, *BUILDER.build.compile]))

    def strike() -> None:
        while not begun.exists():
            time.sleep(0.02)
        shut_down(host, "build-")

    threading.Thread(target=strike, daemon=True).start()
    events = []
    for event in lab.measure(Measure((Share(FAST, 1),), Purpose.SEARCH)):
        events.append(event)
        if isinstance(event, RunStarted) and sum(isinstance(e, RunStarted) for e in events) == 1:
            threading.Timer(0.6, shut_down, [host, "run"]).start()
    assert [type(event) for event in events if isinstance(event, Warned | CandidateSkipped)] == [Warned, Warned]
    assert len(finished(events)) == 1


def test_no_build_of_a_killed_session_runs_beside_a_measurement(open_lab: Open, host: LocalHost) -> None:
    measure(open_lab(), Share(FAST, 1))
    orphan = jobs.start(host, ["sleep", "100"], name="build-small-of-another-commit", timeout=200)
    assert len(finished(measure(open_lab(), Share(FAST, 1)))) == 1
    assert jobs.status(host, orphan) is not None
