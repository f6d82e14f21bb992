"""Builds that fail only with several jobs, builds that always fail, and programs that change or delete their build."""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from threading import Timer

import msgspec
import pytest
from msgspec import structs

from labs import lab_of, measure, runs, skipped, warnings, workload_of
from perfbisect.core.domain.events import BuildFinished, LabEvent, Warned
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab.building import checkout, prebuilt
from perfbisect.lab.building.candidates import LabHost
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.building.log_parser import BuildStep
from perfbisect.lab.building.pipeline import build_commit, build_context
from perfbisect.lab.building.plan import BuildContext, InstalledBuild
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import quick_builder
from perfbisect.repository.discovery import open_repository
from program import executable
from repos import Repo
from waiting import finish, processes

pytestmark = pytest.mark.tools

# Rule "use" needs the file of rule "table" without a stated dependency. With several jobs, "use" runs first.
RACE = """\
all: table use
table:
	case "$(MAKEFLAGS)" in *jobserver*) until [ -e tried ]; do sleep 0.02; done;; esac; echo 200 >table
use:
	cat table >use || { : >tried; exit 1; }
"""
SOUND = "all: table use\ntable:\n\techo 200 >table\nuse: table\n\tcat table >use\n"
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
BENCH = workload_of(driver="command", command=["sh", "-c", "echo $(cat use) ops/s"], rate=r"(\d+) ops/s", timeout=60.0)

Commit = Callable[[str], str]
Context = Callable[..., BuildContext]


@pytest.fixture
def commit(git: Repo) -> Commit:
    return lambda makefile: git.commit({"Makefile": makefile})


@pytest.fixture
def context(git: Repo, host: LocalHost) -> Context:
    def one(at_once: int = 4, **changes: object) -> BuildContext:
        repository = open_repository(git.path)
        bare = finish(checkout.bring_mirror(host, repository, "racy", []))[1]
        builder = msgspec.structs.replace(BUILDER, **changes)
        return build_context(host, HostEntry(name="here", jobs=at_once), builder, "", bare, repository)

    return one


Work = Generator[BuildStep | Warned, None, InstalledBuild]


def steps(work: Work) -> tuple[list[str], list[Warned], InstalledBuild]:
    """The stages in their order, the warnings, and the build."""
    yielded, built = finish(work)
    stages = [stage for stage, _ in groupby(step.stage for step in yielded if isinstance(step, BuildStep))]
    return stages, [step for step in yielded if isinstance(step, Warned)], built


def attempts(work: Work) -> int:
    """The number of attempts of a build that fails."""
    found: list[BuildStep | Warned] = []
    with pytest.raises(BuildFailed):
        found.extend(work)
    return sum(isinstance(step, BuildStep) and step.stage == "checkout" for step in found)


def test_build_that_fails_by_a_race_is_repeated_with_one_job(context: Context, commit: Commit) -> None:
    stages, warned, _ = steps(build_commit(context(), commit(SOUND)))
    assert (stages, warned) == (["checkout", "compile", "install"], []), "a sound build is made once"
    sha = commit(RACE)
    stages, warned, built = steps(build_commit(context(), sha))
    assert stages == ["checkout", "compile", "checkout", "compile", "install"]
    first, second = warned
    assert "does not compile: cat: table: No such file or directory" in first.text
    assert first.text.endswith("; the build is repeated with one job instead of 4 jobs")
    assert "depends on the order of its parts" in second.text
    log = Path(built.facts.log).read_text()
    assert log.startswith("perfbisect: with 4 jobs this build did not compile; it is repeated with one job\n")
    saved = Path(first.advice.removeprefix("See ").removesuffix("."))
    assert "cat table" in saved.read_text()
    assert not [*Path(context().host.root, "jobs").iterdir()]
    assert steps(build_commit(context(), sha))[2].facts.reused
    assert steps(build_commit(context(1), sha))[2].facts.key == built.facts.key


def test_failed_build_is_reported_with_the_error_of_one_job(context: Context, commit: Commit) -> None:
    with pytest.raises(BuildFailed, match=r"does not compile: use\.c:7:1: error: no such thing"):
        finish(build_commit(context(), commit(BROKEN)))
    with pytest.raises(BuildFailed, match="error: of slow"):
        finish(build_commit(context(), sha := commit(BOTH)))
    log = next(Path(context().host.root, "logs").glob(f"*{sha[:10]}*")).read_text()
    assert log.startswith("perfbisect: with 4 jobs this build did not compile; it is repeated with one job\n")
    assert "error: of other" not in log
    assert not [*Path(context().host.root, "jobs").iterdir()]


def test_build_that_would_fail_again_is_not_repeated(context: Context, commit: Commit) -> None:
    sha = commit(BROKEN)

    def tried(at_once: int = 4, **changes: object) -> int:
        return attempts(build_commit(context(at_once, build=msgspec.structs.replace(BUILDER.build, **changes)), sha))

    assert (tried(4), tried(1)) == (2, 1)
    assert tried(compile=[["make", "-f", "{source}/Makefile"]]) == 1, "the command has no number of jobs"
    assert tried(configure=[["sh", "-c", "echo {jobs}; exit 1"]]) == 1
    assert tried(compile=[["sh", "-c", "sleep {jobs}0"]], timeout=0.3) == 1
    with pytest.raises(EnvironmentFailure, match=r"the disk of host .* is full"):
        finish(build_commit(context(), commit(FULL)))


def test_build_without_memory_or_files_is_repeated_with_one_job(context: Context, commit: Commit) -> None:
    for makefile, warned in ((KILLED, 1), (LACKING, 2)):
        _, warnings, built = steps(build_commit(context(), commit(makefile)))
        assert len(warnings) == warned
        assert Path(built.facts.log).exists()
    with pytest.raises(EnvironmentFailure, match="stopped on host here: out of memory"):
        finish(build_commit(context(), commit(KILLED.replace("*-j4*)", "*)"))))  # one job lacks memory, too


@pytest.mark.slow
def test_second_attempt_of_a_killed_session_is_continued(context: Context, commit: Commit, tmp_path: Path) -> None:
    """The next session waits for its end. lab/test_host_lab tests this for a first attempt."""
    count, go = tmp_path / "count", tmp_path / "go"
    held = f"until [ -e {go} ] || [ $$(wc -l <{count}) != 2 ]; do sleep 0.05; done"
    sha = commit(RACE.replace("case", f"echo >>{count}; {held}; case"))
    left = build_commit(context(), sha)  # a killed session closes nothing
    while not (running := jobs.running_jobs(context().host)) or not running[0].name.endswith("-alone"):
        next(left)
    release = Timer(1, go.touch)
    release.start()
    stages, warned, built = steps(build_commit(context(), sha))
    release.join()
    assert (warned, stages.count("compile"), count.read_text()) == ([], 1, "\n\n")
    assert built.facts.binary


def test_abandoned_second_attempt_leaves_no_job_running(context: Context, commit: Commit) -> None:
    mark = str(4_000_000 + os.getpid())
    sha = commit(RACE.replace("cat table >use", f"cat table >use && sleep {mark}"))
    building = build_commit(context(), sha)
    for step in building:
        if isinstance(step, Warned):
            break
    while not processes(mark):
        next(building)
    building.close()
    assert jobs.running_jobs(context().host) == ()
    assert not processes(mark)


def test_end_and_candidate_with_racing_builds_are_measured(host: LocalHost, tmp_path: Path, commit: Commit) -> None:
    shas = tuple(
        commit(makefile) for makefile in (RACE, RACE.replace("200", "100"), SOUND.replace("200", "90"), BROKEN, SOUND)
    )
    entry = HostEntry(name="here", jobs=4)
    lab = lab_of(host, BUILDER, BENCH, tmp_path / "repo", shas, entry=entry, ends={shas[0]: "good", shas[2]: "bad"})
    events = measure(lab, PlannedRuns(0, 1), PlannedRuns(1, 1), PlannedRuns(2, 1))
    assert sorted(run.reported or 0 for run in runs(events)) == [90, 100, 200]
    assert len(warnings(events)) == 4
    assert "use.c:7:1" in skipped(measure(lab, PlannedRuns(3, 1))).reason


Lab = Callable[..., HostLab]


def copy(lab: HostLab) -> HostLab:
    """The lab of a later hunt on the same host."""
    return replace(lab, seeds=LayoutSeeds() if lab.seeds else None)


@pytest.fixture
def lab(host: LocalHost, git: Repo) -> Lab:
    """A lab for a commit with a Makefile and a program, which prints the number in its file ``use``."""
    use = "all:\n\techo 7 >use\n"

    def of(*, makefile: str = use, program: str = "", prepare: str = "", build: str = "make") -> HostLab:
        git.write({"Makefile": makefile})
        executable(git.path / "program", f"#!/bin/sh\necho $(cat use) ops/s\n{program}\n")
        prepared = [["sh", "-c", each] for each in prepare.splitlines()]
        workload = msgspec.structs.replace(BENCH, command=["./program"], prepare_commands=prepared)
        builder = quick_builder((build,), str(git.path))
        return lab_of(host, builder, workload, git.path, (git.commit(),), is_range=False)

    return of


def builds(events: list[LabEvent]) -> int:
    """The number of builds that were made."""
    return len([event for event in events if isinstance(event, BuildFinished) and not event.facts.reused])


def test_a_build_that_deletes_its_own_folder_is_skipped(lab: Lab) -> None:
    opened = lab(makefile="all:\n\tcd .. && rm -rf *\n")
    opened.seeds = LayoutSeeds()
    facts = skipped(measure(opened, PlannedRuns(0, 1)))
    assert facts.stage == "install"
    assert facts.reason.endswith("does not install: the build did not install anything")
    assert Path(facts.log).is_file()
    assert [run.reported for run in runs(measure(lab(), PlannedRuns(0, 1)))] == [7], "the next commit is built"


def test_a_load_that_deletes_its_own_folder_is_skipped(lab: Lab) -> None:
    """Also, a build that deletes its folder before its last step is skipped."""
    built = lab(makefile="all:\n\trm -rf $(CURDIR)\n", build="sh -c 'make; cd {prefix}'")
    assert skipped(measure(built, PlannedRuns(0, 1))).stage == "compile"
    facts = skipped(measure(lab(prepare='rm -rf "$PWD"\ntrue'), PlannedRuns(0, 1)))
    assert "the dataset cannot be loaded" in facts.reason
    assert "can't cd to" in facts.reason


def test_a_build_that_its_program_changes_is_made_again(lab: Lab, tmp_path: Path) -> None:
    """Both by this hunt and by a later hunt. lab/building/test_build_store tests which changes count."""
    change = "touch -r use t && printf '8\n' 1<>use && touch -r t use"
    opened = lab(program=f"[ -e {tmp_path}/done ] || {{ :>{tmp_path}/done; {change}; }}")
    events = measure(opened, PlannedRuns(0, 2))
    assert [run.reported for run in runs(events)] == [7, 7]
    [warned] = warnings(events)
    assert "files of the build on host here have changed since the build ended (" in warned
    assert builds(events) == 2
    (tmp_path / "done").unlink()
    measure(opened, PlannedRuns(0, 1))
    later = measure(copy(opened), PlannedRuns(0, 1))
    assert ([run.reported for run in runs(later)], len(warnings(later))) == ([7], 1)
    assert warnings(measure(copy(opened), PlannedRuns(0, 1))) == []


def test_program_that_breaks_its_build_again_is_skipped(lab: Lab) -> None:
    events = measure(lab(program='rm -rf "$PWD"; exit 9'), PlannedRuns(0, 2))
    assert len(warnings(events)) == 1
    assert builds(events) == 2
    assert skipped(events).reason == "the command ended with status 9: 7 ops/s"


@pytest.fixture
def linked(lab: Lab, tmp_path: Path) -> Lab:
    """A lab with randomized layouts, for a commit that also has a program of two functions."""

    def of(program: str) -> HostLab:
        functions = "int f(void) { return 1; }\nint g(void) { return 2; }\n"
        (tmp_path / "repo" / "main.c").write_text(f"{functions}int main(void) {{ return f() - g() + 1; }}\n")
        makefile = "all:\n\techo 7 >use; $(CC) $(CFLAGS) -o main main.c\n"
        opened = lab(makefile=makefile, program=program, build="make CC={compiler} CFLAGS={cflags}")
        opened.seeds = LayoutSeeds()
        return opened

    return of


def fresh(lab: HostLab, runs: int) -> Generator[LabEvent]:
    return lab.measure(Measure((PlannedRuns(0, runs),), Purpose.CONFIRM, fresh=True))


def test_layout_is_made_again_with_the_build_whose_files_it_shares(linked: Lab, tmp_path: Path) -> None:
    opened = linked(f"./main; [ $(ls {tmp_path}/done.* | wc -l) != 1 ] || echo 8 >use; :>{tmp_path}/done.$$")
    events = finish(fresh(opened, 4))[0]
    assert [(run.reported, run.layout) for run in runs(events)] == [(7, 1), (7, 2), (7, 3), (7, 4)]
    assert len(warnings(events)) == 2
    assert builds(events) == 2
    assert warnings(measure(copy(opened), PlannedRuns(0, 1))) == []


@pytest.mark.slow
def test_program_that_breaks_files_of_layout_and_build_is_skipped(linked: Lab) -> None:
    """The change is found first in the layout, then in the build."""
    events = list(islice(fresh(linked("echo 8 >>use; exit 9"), 2), 100))
    assert len(events) < 100
    layout_changed, build_changed, given_up = warnings(events)
    assert "the build is made again" in layout_changed and "the build is made again" in build_changed
    assert "in layout 1, the command ended with status 9" in given_up


@pytest.mark.slow
def test_changed_build_is_not_sent_and_is_noticed_on_arrival(lab: Lab, host: LocalHost, tmp_path: Path) -> None:
    """Between two hunts, the copy on the build host is changed, then the copy on the host that measures."""
    other = LocalHost("other", PurePosixPath(tmp_path / "other"))
    usual = lab()

    def opened() -> HostLab:
        return replace(copy(usual), build_places=(LabHost(other, HostEntry(name="other", root=str(host.root))),))

    assert runs(measure(opened(), PlannedRuns(0, 2)))
    for root in (other.root, host.root):
        [built] = Path(root).glob("builds/*/prefix/use")
        built.write_text("8\n")
        if root == other.root:
            shutil.rmtree(Path(host.root, "builds"))
        events = measure(opened(), PlannedRuns(0, 1))
        assert [run.reported for run in runs(events)] == [7]
        assert len(warnings(events)) == 1


@pytest.mark.slow
def test_tarball_that_its_program_changes_is_unpacked_again(lab: Lab, host: LocalHost, tmp_path: Path) -> None:
    opened = lab(program="echo 8 >>use")
    (tmp_path / "repo" / "use").write_text("7")
    subprocess.run(["tar", "-C", tmp_path / "repo", "-cf", tmp_path / "old.tar", "program", "use"], check=True)
    builder = structs.replace(opened.builder, build=None)
    for _ in range(2):  # in this session, and by a later one
        built = prebuilt.install_prebuilt(host, builder, "old", str(tmp_path / "old.tar"))
        tarball = replace(opened, builder=builder, candidates=replace(opened.candidates, prebuilt={0: built}))
        events = measure(tarball, PlannedRuns(0, 2))
        assert [run.reported for run in runs(events)] == [7, 7]
        assert len(warnings(events)) == 1
