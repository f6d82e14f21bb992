"""Builds and programs that change or delete what they were built from and where they run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab_events import measure, runs, skipped
from labs import lab_of
from perfbisect.core.domain.orders import Share
from perfbisect.host.local import LocalHost
from perfbisect.lab.build.layout_seeds import LayoutSeeds
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.requested import quick_builder
from perfbisect.recipes.workload import Workload

pytestmark = pytest.mark.tools

Lab = Callable[..., HostLab]


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
