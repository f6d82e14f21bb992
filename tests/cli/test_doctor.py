"""`bisect doctor` on this machine."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.cli.main import main
from perfbisect.host.lock import hold
from perfbisect.host.registry import connect
from perfbisect.recipes.find import load_host

pytestmark = pytest.mark.tools

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """``invoke(*args)`` runs the program in this process; returns its exit status and what it says."""

    def run(*args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["bisect", *args])
        with pytest.raises(SystemExit) as leave:
            main()
        assert isinstance(leave.value.code, int)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return leave.value.code, said.out + said.err

    return run


def test_every_finding_has_its_line_and_its_advice(invoke: Invoke) -> None:
    status, said = invoke("doctor", "--builder", "demo", "--workload", "update-index")
    assert status == 0
    assert "local is fit to measure on: 0 refused" in said
    assert "sysbench 1" in said
    assert "GiB are free" in said
    assert "no other hunt is measuring there" in said


def test_as_json_the_same(invoke: Invoke) -> None:
    status, said = invoke("doctor", "--json")
    told = json.loads(said)
    assert status == 0
    assert told["host"]["name"] == "local"
    assert {"level", "topic", "text", "advice"} == set(told["findings"][0])
    assert {"tools", "disk", "perf"} <= {finding["topic"] for finding in told["findings"]}


def test_what_a_builder_needs_is_named_with_its_package(invoke: Invoke, tmp_path: Path) -> None:
    recipe = tmp_path / "mine" / "builder.toml"
    recipe.parent.mkdir()
    recipe.write_text(
        'summary = "mine"\ndriver = "demo"\n[build]\ncompile = [["no-such-compiler"]]\ninstall = []\n'
        'artifacts = ["x"]\nneeds = ["no-such-compiler"]\n[variants.o2nofp]\n'
    )
    status, said = invoke("doctor", "--builder", "mine", "--builders", str(tmp_path))
    assert status == 4
    assert "no-such-compiler is not installed on host local" in said
    assert "install no-such-compiler" in said
    assert "not fit to measure on: 1 refused" in said


def test_headers_and_libraries_are_named_with_their_packages(invoke: Invoke, tmp_path: Path) -> None:
    recipe = tmp_path / "mine" / "builder.toml"
    recipe.parent.mkdir()
    text = """summary = "mine"\ndriver = "demo"\n[build]\ncompile = []\ninstall = []\nartifacts = ["x"]
needs = ["make", "stdio.h", "no/such.h"]\n[build.packages]\n"no/such.h" = {debian = "libno-dev", fedora = "no-devel"}\n"""
    recipe.write_text(text)
    status, said = invoke("doctor", "--builder", "mine", "--builders", str(tmp_path))
    assert status == 4
    assert "no/such.h is not installed on host local" in said
    assert "libno-dev" in said or "no-devel" in said
    assert "stdio.h" not in said
    recipe.write_text(text.replace("no/such.h", "stdlib.h"))
    status, said = invoke("doctor", "--builder", "mine", "--builders", str(tmp_path))
    assert status == 0
    assert "everything that mine needs to be built is installed: gcc, make, stdio.h, stdlib.h" in said


def test_a_host_that_cannot_be_used_is_a_finding_too(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(f'[hosts.odd]\nroot = "{tmp_path}/file/root"\n')
    status, said = invoke("doctor", "odd", "--json", "--hosts", str(inventory))
    assert status == 4
    [finding] = json.loads(said)["findings"]
    assert finding["level"] == "refused"
    assert "cannot be created" in finding["text"]


def test_who_measures_there_is_told(invoke: Invoke) -> None:
    with hold(connect(load_host("local")), "a hunt of somebody else"):
        status, said = invoke("doctor")
    assert status == 0
    assert "a hunt of somebody else" in said


def test_a_workload_needs_its_system(invoke: Invoke) -> None:
    status, said = invoke("doctor", "--workload", "update-index")
    assert status == 3
    assert "--builder" in said


def test_without_a_workload_those_of_the_system_tell_whether_sysbench_is_needed(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything of this machine is there but sysbench."""
    for folder in os.get_exec_path():
        for program in Path(folder).glob("*"):
            if program.name != "sysbench" and not (link := tmp_path / program.name).is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    for builder, status in (("rocksdb", 0), ("command", 0), ("demo", 4), ("postgres", 4)):
        ended, said = invoke("doctor", "--builder", builder)
        assert (ended, "sysbench is not installed" in said) == (status, bool(status)), said


def test_without_a_workload_a_broken_suite_is_nobodys_business(invoke: Invoke, tmp_path: Path) -> None:
    suite = tmp_path / "mine" / "suite.toml"
    suite.parent.mkdir()
    broken = """summary = "s"\ndriver = "demo"\n[defaults]\ngroup = "g"\nsummary = "s"
[workloads]\none.script = "no-such.lua"\n"""
    for text in (broken, "what is this"):
        suite.write_text(text)
        status, said = invoke("doctor", "--builder", "demo", "--workloads", str(tmp_path))
        assert status == 0, said
        assert "sysbench 1" in said, "nobody knows that it is not needed"
