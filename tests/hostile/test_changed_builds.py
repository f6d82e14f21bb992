"""Builds and programs that change or delete what they were built from and where they run."""

import shutil
import subprocess
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

import pytest
from msgspec import structs

from labs import lab_of, measure, runs, skipped, warnings
from perfbisect.core.domain.events import BuildFinished, LabEvent
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import prebuilt
from perfbisect.lab.build.candidates import LabHost
from perfbisect.lab.build.links import LayoutSeeds
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import quick_builder
from perfbisect.recipes.workload import Workload
from waiting import finish

pytestmark = pytest.mark.tools

Lab = Callable[..., HostLab]


def copy(lab: HostLab) -> HostLab:
    """The lab of a later hunt on the same host."""
    return replace(lab, seeds=LayoutSeeds() if lab.seeds else None)


@pytest.fixture
def lab(host: LocalHost, tmp_path: Path, git: Callable[..., str]) -> Lab:
    """A lab for a commit with a Makefile and a program, which prints the number in its file ``use``."""

    def of(
        *, makefile: str = "all:\n\techo 7 >use\n", program: str = "", prepare: str = "", build: str = "make"
    ) -> HostLab:
        (tmp_path / "repo" / "Makefile").write_text(makefile)
        (tmp_path / "repo" / "program").write_text(f"#!/bin/sh\necho $(cat use) ops/s\n{program}\n")
        (tmp_path / "repo" / "program").chmod(0o755)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", "change")
        workload = Workload(
            name="bench", suite="suite", folder="/nowhere", driver="command", summary="", group="command",
            command=["./program"], prepare_commands=[["sh", "-c", each] for each in prepare.splitlines()],
            rate=r"(\d+) ops/s", timeout=60.0,
        )  # fmt: skip
        builder = quick_builder((build,), str(tmp_path / "repo"))
        return lab_of(host, builder, workload, tmp_path / "repo", (git("rev-parse", "HEAD"),), is_range=False)

    return of


@pytest.mark.parametrize("layouts", [False, True])
@pytest.mark.parametrize("command", ["rm -rf $(CURDIR)", "cd .. && rm -rf *", "rm -rf $(abspath ..)"])
def test_a_build_that_deletes_its_own_folder_is_skipped(lab: Lab, command: str, layouts: bool) -> None:
    opened = lab(makefile=f"all:\n\t{command}\n")
    opened.seeds = LayoutSeeds() if layouts else None
    facts = skipped(measure(opened, Share(0, 1)))
    assert facts.stage == "install"
    assert facts.reason.endswith("does not install: it did not install anything")
    assert Path(facts.log).is_file()
    assert [run.reported for run in runs(measure(lab(), Share(0, 1)))] == [7], "the next commit is built"


def test_a_build_that_deletes_its_folder_before_its_last_step_is_skipped(lab: Lab) -> None:
    opened = lab(makefile="all:\n\trm -rf $(CURDIR)\n", build="sh -c 'make; cd {prefix}'")
    assert skipped(measure(opened, Share(0, 1))).stage == "compile"


def test_a_load_that_deletes_its_own_folder_is_skipped(lab: Lab) -> None:
    facts = skipped(measure(lab(prepare='rm -rf "$PWD"\ntrue'), Share(0, 1)))
    assert "the data cannot be loaded" in facts.reason
    assert "can't cd to" in facts.reason


CHANGES = {
    "another content": "echo 8 >>use",
    "another content of the same size and time": "touch -r use t && printf '8\n' 1<>use && touch -r t use",
    "another file of the same size and time": "printf '8\n' >t && touch -r use t && mv t use",
    "a file that is gone": "rm use",
    "a file that cannot be executed": "chmod a-x program",
    "a link that leads elsewhere": "ln -sfn Makefile link",
    "an empty folder that is gone": "rmdir empty",
    "a folder for a link to one like it": "cp -a full t && rm -r full && ln -s t full",
    "a name with a newline": 'for file in full/*; do case $file in *"\n"*) echo x >"$file";; esac; done',
    "a name that is not UTF-8": "echo x >\"full/$(printf 'caf\\351')\"",
    "a name that begins with -": "echo x >-rf",
    "everything in the folder": "rm -rf ./* .[!.]*",
    "the folder": 'rm -rf "$PWD"',
    "all beside the folder": "cd .. && rm -rf *",
}
FULL = r"""all:
	echo 7 >use; echo y >-rf; ln -s use link; mkdir empty full
	printf y >"full/$$(printf 'two\nlines')"; printf y >"full/$$(printf 'caf\351')"; printf y >'full/a  b "$$(c)'
"""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_build_that_its_program_changes_is_made_again(lab: Lab, tmp_path: Path, change: str) -> None:
    """By this hunt, and by a later one."""
    opened = lab(makefile=FULL, program=f"[ -e {tmp_path}/done ] || {{ :>{tmp_path}/done; {change}; }}")
    events = measure(opened, Share(0, 2))
    assert [run.reported for run in runs(events)] == [7, 7]
    [warned] = warnings(events)
    assert "files of its build on host here have changed since it was made (" in warned
    assert len([event for event in events if isinstance(event, BuildFinished) and not event.facts.reused]) == 2
    (tmp_path / "done").unlink()
    measure(opened, Share(0, 1))
    later = measure(copy(opened), Share(0, 1))
    assert [run.reported for run in runs(later)] == [7]
    assert len(warnings(later)) == 1 or change.startswith("cd ..")  # then there is no build
    assert warnings(measure(copy(opened), Share(0, 1))) == []


@pytest.mark.parametrize("change", ["touch use full", "cp use t && mv t use", "echo x >new; mkdir -p full/new"])
def test_what_is_as_it_was_built_is_not_made_again(lab: Lab, change: str) -> None:
    opened = lab(makefile=FULL, program=change)
    events = measure(opened, Share(0, 3))
    assert (len(runs(events)), warnings(events)) == (3, [])
    assert warnings(measure(copy(opened), Share(0, 1))) == []


def test_a_program_that_fails_in_a_build_that_it_has_changed_is_skipped_once_that_was_made_again(lab: Lab) -> None:
    events = measure(lab(program='rm -rf "$PWD"; exit 9'), Share(0, 2))
    assert len(warnings(events)) == 1
    assert len([event for event in events if isinstance(event, BuildFinished)]) == 2
    assert skipped(events).reason == "it ended with status 9: 7 ops/s"


@pytest.fixture
def linked(lab: Lab, tmp_path: Path) -> Lab:
    """A lab in fresh layouts, for a commit that has a program of two functions besides."""

    def of(program: str) -> HostLab:
        (tmp_path / "repo" / "main.c").write_text(
            "int f(void) { return 1; }\nint g(void) { return 2; }\nint main(void) { return f() - g() + 1; }\n"
        )
        makefile = "all:\n\techo 7 >use; $(CC) $(CFLAGS) -o main main.c\n"
        opened = lab(makefile=makefile, program=program, build="make CC={compiler} CFLAGS={cflags}")
        opened.seeds = LayoutSeeds()
        return opened

    return of


def fresh(lab: HostLab, runs: int) -> Generator[LabEvent]:
    return lab.measure(Measure((Share(0, runs),), Purpose.CONFIRM, fresh=True))


def test_a_layout_shares_files_with_its_build_and_is_made_again_with_it(linked: Lab, tmp_path: Path) -> None:
    opened = linked(f"./main; [ $(ls {tmp_path}/done.* | wc -l) != 1 ] || echo 8 >use; :>{tmp_path}/done.$$")
    events = finish(fresh(opened, 4))[0]
    assert [(run.reported, run.layout) for run in runs(events)] == [(7, 1), (7, 2), (7, 3), (7, 4)]
    assert len(warnings(events)) == 2
    assert len([event for event in events if isinstance(event, BuildFinished)]) == 2
    assert warnings(measure(copy(opened), Share(0, 1))) == []


def test_a_program_that_fails_in_a_file_that_its_layout_shares_with_the_build_does_so_twice(linked: Lab) -> None:
    """Layout and build are found changed in turn."""
    events = list(islice(fresh(linked("echo 8 >>use; exit 9"), 2), 100))
    assert len(events) < 100
    layout_changed, build_changed, given_up = warnings(events)
    assert "it is made again" in layout_changed and "it is made again" in build_changed
    assert "in layout 1, it ended with status 9" in given_up


def test_what_travels_is_recorded_where_it_arrives_and_never_sent_changed(
    lab: Lab, host: LocalHost, tmp_path: Path
) -> None:
    """The build host's own copy is changed between two hunts, then that of the host which measures."""
    other = LocalHost("other", PurePosixPath(tmp_path / "other"))
    usual = lab()

    def opened() -> HostLab:
        return replace(copy(usual), build_places=(LabHost(other, HostEntry(name="other", root=str(host.root))),))

    [use] = [number for number in (7,) if runs(measure(opened(), Share(0, 2)))]
    for root in (other.root, host.root):
        [built] = Path(root).glob("builds/*/prefix/use")
        built.write_text("8\n")
        if root == other.root:
            shutil.rmtree(Path(host.root, "builds"))
        events = measure(opened(), Share(0, 1))
        assert [run.reported for run in runs(events)] == [use]
        assert len(warnings(events)) == 1


def test_a_tarball_whose_program_changes_it_is_unpacked_again(lab: Lab, host: LocalHost, tmp_path: Path) -> None:
    opened = lab(program="echo 8 >>use")
    (tmp_path / "repo" / "use").write_text("7")
    subprocess.run(["tar", "-C", tmp_path / "repo", "-cf", tmp_path / "old.tar", "program", "use"], check=True)
    builder = structs.replace(opened.builder, build=None)
    for _ in range(2):  # in this session, and by a later one
        built = prebuilt.take(host, builder, "old", str(tmp_path / "old.tar"))
        tarball = replace(opened, builder=builder, candidates=replace(opened.candidates, prebuilt={0: built}))
        events = measure(tarball, Share(0, 2))
        assert [run.reported for run in runs(events)] == [7, 7]
        assert len(warnings(events)) == 1
