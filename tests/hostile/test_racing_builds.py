"""Builds that fail with several jobs at once, and not with one; and those that fail with one, too."""

import os
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest

from labs import lab_of, measure, runs, skipped, warnings
from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.orders import Share
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import checkout
from perfbisect.lab.build.log_parser import Progress
from perfbisect.lab.build.pipeline import build, build_context
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload
from perfbisect.repository.discovery import open_repository
from program import bisect
from waiting import finish, processes

pytestmark = pytest.mark.tools

# The rule for "use" needs the file of the rule for "table", and does not say so.
RACE = "all: table use\ntable:\n\tsleep 0.3; echo 200 >table\nuse:\n\tcat table >use\n"
SOUND = RACE.replace("use:", "use: table")
BROKEN = "all: one two\none:\n\tsleep 0.3\ntwo: one\n\t@echo 'use.c:7:1: error: no such thing'; exit 1\n"
# With several jobs another rule fails than with one.
BOTH = "all: slow other\nslow:\n\tsleep 0.3; echo 'slow.c:1:1: error: of slow'; exit 1\nother:\n\t@test -e no; echo error: of other; exit 1\n"
KILLED = """\
all:
	@case "$(MAKEFLAGS)" in *-j4*) echo 'gcc: fatal error: Killed signal terminated program cc1plus'; exit 1;; esac
	@echo 1 >use
"""
LACKING = 'all:\n\t@case "$(MAKEFLAGS)" in *-j4*) ;; *) echo 1 >use;; esac\n'
FULL = "all:\n\t@echo 'cat: write error: No space left on device'; exit 1\n"

BUILDER = Builder(
    name="racy",
    folder="/nowhere",
    summary="",
    driver="command",
    variants={"o2nofp": Variant(cflags="-O2")},
    build=Build(
        compile=[["make", "-j{jobs}", "-f", "{source}/Makefile"]],
        install=[["sh", "-c", "mkdir -p {prefix} && if [ -e use ]; then cp use {prefix}; fi"]],
        artifacts=["use"],
        timeout=60.0,
    ),
)
BENCH = Workload(
    name="bench",
    suite="suite",
    folder="/nowhere",
    driver="command",
    summary="",
    group="command",
    command=["sh", "-c", "echo $(cat use) ops/s"],
    rate=r"(\d+) ops/s",
)

Git = Callable[..., str]
Commit = Callable[[str], str]


@pytest.fixture
def commit(tmp_path: Path, git: Git) -> Commit:
    def one(makefile: str) -> str:
        (tmp_path / "repo" / "Makefile").write_text(makefile)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", "change")
        return git("rev-parse", "HEAD")

    return one


@pytest.fixture
def context(tmp_path: Path, host: LocalHost) -> Callable[..., BuildContext]:
    def one(at_once: int = 4, **changes: object) -> BuildContext:
        repository = open_repository(tmp_path / "repo")
        bare = finish(checkout.mirror(host, repository, "racy", []))[1]
        builder = msgspec.structs.replace(BUILDER, **changes)
        return build_context(host, HostEntry(name="here", jobs=at_once), builder, "", bare, repository)

    return one


def steps(work: Generator[Progress | Warned, None, Built]) -> tuple[list[str], list[Warned], Built]:
    """The stages, each time one begins; the warnings; what was built."""
    stages: list[str] = []
    warned, built = [], None
    yielded, built = finish(work)
    for step in yielded:
        if isinstance(step, Warned):
            warned.append(step)
        elif step.stage != (stages[-1] if stages else ""):
            stages.append(step.stage)
    return stages, warned, built


def once_compiling(
    work: Generator[Progress | Warned, None, Built], act: Callable[[], None]
) -> Generator[Progress | Warned, None, Built]:
    """The same steps; ``act`` is called when the compilation has begun, or is found begun."""
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            built: Built = end.value
            return built
        if isinstance(step, Progress) and step.stage == "compile":
            act()
        yield step


def attempts(work: Generator[Progress | Warned, None, Built]) -> int:
    """How often a build that fails was tried."""
    count = 0
    with pytest.raises(BuildFailed):
        for step in work:
            count += isinstance(step, Progress) and step.stage == "checkout"
    return count


def test_a_race_is_no_verdict(context: Callable[..., BuildContext], commit: Commit) -> None:
    sha = commit(RACE)
    stages, warned, built = steps(build(context(), sha))
    assert stages == ["checkout", "compile", "checkout", "compile", "install"]
    first, second = warned
    assert "does not compile: cat: table: No such file or directory" in first.text
    assert first.text.endswith(": it is repeated with one job instead of 4")
    assert "depends on the order of its parts" in second.text
    log = Path(built.facts.log).read_text()
    assert log.startswith("perfbisect: with 4 jobs at once this build did not compile, and is repeated with one\n")
    saved = Path(first.advice.removeprefix("See ").removesuffix("."))
    assert "cat table" in saved.read_text()
    assert not [*Path(context().host.root, "jobs").iterdir()]
    assert steps(build(context(), sha))[2].facts.reused
    assert steps(build(context(1), sha))[2].facts.key == built.facts.key


def test_what_builds_is_built_once(context: Callable[..., BuildContext], commit: Commit) -> None:
    stages, warned, _ = steps(build(context(), commit(SOUND)))
    assert (stages, warned) == (["checkout", "compile", "install"], [])


def test_a_commit_that_does_not_compile_is_reported_with_the_error_of_one_job(
    context: Callable[..., BuildContext], commit: Commit
) -> None:
    with pytest.raises(BuildFailed, match=r"does not compile: use\.c:7:1: error: no such thing"):
        finish(build(context(), commit(BROKEN)))
    with pytest.raises(BuildFailed, match="error: of slow"):
        finish(build(context(), sha := commit(BOTH)))
    log = next(Path(context().host.root, "logs").glob(f"*{sha[:10]}*")).read_text()
    assert log.startswith("perfbisect: with 4 jobs at once this build did not compile, and is repeated with one\n")
    assert "error: of other" not in log
    assert not [*Path(context().host.root, "jobs").iterdir()]


def test_what_would_fail_again_is_not_repeated(context: Callable[..., BuildContext], commit: Commit) -> None:
    sha = commit(BROKEN)
    assert attempts(build(context(4), sha)) == 2
    assert attempts(build(context(1), sha)) == 1
    fixed = msgspec.structs.replace(BUILDER.build, compile=[["make", "-f", "{source}/Makefile"]])
    assert attempts(build(context(4, build=fixed), sha)) == 1, "it does not depend on the number of jobs"
    early = msgspec.structs.replace(BUILDER.build, configure=[["sh", "-c", "echo {jobs}; exit 1"]])
    assert attempts(build(context(4, build=early), sha)) == 1
    late = msgspec.structs.replace(BUILDER.build, compile=[["sh", "-c", "sleep {jobs}0"]], timeout=0.3)
    assert attempts(build(context(4, build=late), sha)) == 1
    with pytest.raises(EnvironmentFailure, match="no space left"):
        finish(build(context(), commit(FULL)))


@pytest.mark.parametrize(("makefile", "warned"), [(KILLED, 1), (LACKING, 2)], ids=["memory", "not installed"])
def test_other_failures_that_one_job_may_not_have(
    context: Callable[..., BuildContext], commit: Commit, makefile: str, warned: int
) -> None:
    _, warnings, built = steps(build(context(), commit(makefile)))
    assert len(warnings) == warned
    assert Path(built.facts.log).exists()


def test_memory_that_one_job_lacks_too_is_the_hosts_fault(context: Callable[..., BuildContext], commit: Commit) -> None:
    with pytest.raises(EnvironmentFailure, match="stopped on host here: out of memory"):
        finish(build(context(), commit(KILLED.replace("*-j4*)", "*)"))))


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_attempt_that_a_killed_session_has_left_is_followed(
    context: Callable[..., BuildContext], commit: Commit, tmp_path: Path, attempt: int
) -> None:
    """A session is killed in the first or the second attempt; the next one follows the job to its end."""
    count, go = tmp_path / "count", tmp_path / "go"
    held = f"until [ -e {go} ] || [ $$(wc -l <{count}) != {attempt} ]; do sleep 0.05; done"
    sha = commit(RACE.replace("sleep 0.3", f"echo >>{count}; {held}; sleep 0.3"))
    left = build(context(), sha)
    seen = 0
    for step in left:
        seen += isinstance(step, Progress) and step.stage == "compile" and not step.done
        if seen == attempt:
            break
    # A killed session closes nothing.
    (job,) = jobs.running(context().host)
    assert job.name.endswith("-alone") == (attempt == 2)
    stages, warned, built = steps(once_compiling(build(context(), sha), go.touch))
    assert len(warned) == (2 if attempt == 1 else 0)
    assert stages.count("compile") == (2 if attempt == 1 else 1)
    assert count.read_text() == "\n\n"
    assert built.facts.binary
    del left


def test_leaving_the_second_attempt_leaves_nothing_running(
    context: Callable[..., BuildContext], commit: Commit
) -> None:
    mark = str(4_000_000 + os.getpid())
    sha = commit(RACE.replace("cat table", f"cat table && sleep {mark}"))
    building = build(context(), sha)
    for step in building:
        if isinstance(step, Warned):
            break
    while not processes(mark):
        next(building)
    building.close()
    assert jobs.running(context().host) == ()
    assert not processes(mark)


def test_an_end_and_a_candidate_that_race_are_measured(host: LocalHost, tmp_path: Path, commit: Commit) -> None:
    shas = tuple(
        commit(makefile) for makefile in (RACE, RACE.replace("200", "100"), SOUND.replace("200", "90"), BROKEN, SOUND)
    )
    entry = HostEntry(name="here", jobs=4)
    lab = lab_of(host, BUILDER, BENCH, tmp_path / "repo", shas, entry=entry, ends={shas[0]: "good", shas[2]: "bad"})
    events = measure(lab, Share(0, 1), Share(1, 1), Share(2, 1))
    assert sorted(run.reported or 0 for run in runs(events)) == [90, 100, 200]
    assert len(warnings(events)) == 4
    assert "use.c:7:1" in skipped(measure(lab, Share(3, 1))).reason


@pytest.mark.e2e
@pytest.mark.slow
def test_a_hunt_whose_end_and_culprit_race_names_the_culprit(tmp_path: Path, git: Git, commit: Commit) -> None:
    bench = tmp_path / "repo" / "bench"
    bench.write_text("#!/bin/sh\nsleep 0.2; echo $(($(cat use) + $(date +%N | cut -c 7-8 | sed s/^0//))) ops/s\n")
    bench.chmod(0o755)
    shas = [
        commit((RACE if number in (0, 5) else SOUND).replace("200", "2000" if number < 5 else "1000") + f"# {number}\n")
        for number in range(8)
    ]
    words = ["run", shas[0], shas[-1], "--build", "make -j{jobs}", "--run", "./bench", "--rate", r"(\d+) ops/s"]
    ended = bisect(*words, "--plain", "--no-explain", "--history", str(tmp_path / "history.db"), cwd=tmp_path / "repo")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"The culprit is {shas[5][:10]}" in ended.stdout
    for sha in (shas[0], shas[5]):
        assert f"the build of {sha[:10]} depends on the order of its parts" in ended.stdout + ended.stderr
