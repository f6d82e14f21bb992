"""`bisect doctor` on this machine."""

import json
import re
from pathlib import Path

import pytest

from perfbisect.cli.commands.doctor import only_commands
from perfbisect.host.lock import hold
from perfbisect.host.registry import connect
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import load_host
from program import exits

pytestmark = pytest.mark.tools


def test_every_finding_has_its_line_and_its_advice() -> None:
    """Among them the owner of the lock."""
    with hold(connect(load_host("local")), "a hunt of another session"):
        said = exits(0, "doctor", "--builder", "demo", "--workload", "update-index")
    assert "local is fit to measure on: 0 refused" in said
    assert "sysbench 1" in said
    assert "GiB are free" in said
    assert "a hunt of another session" in said


def test_as_json_the_same() -> None:
    report = json.loads(exits(0, "doctor", "--json"))
    assert report["host"]["name"] == "local"
    assert {"level", "topic", "text", "advice"} == set(report["findings"][0])
    assert {"tools", "disk", "perf", "pairs"} <= {finding["topic"] for finding in report["findings"]}
    assert any("no other hunt is measuring there" in finding["text"] for finding in report["findings"])


RECIPE = """summary = "mine"\ndriver = "demo"\n[build]\ncompile = [["no-such-compiler"]]\ninstall = []\nartifacts = ["x"]
needs = ["make", "stdio.h", "no-such-compiler", "no/such.h"]
[build.packages]\n"no/such.h" = {debian = "libno-dev", fedora = "no-devel"}\n"""


def test_what_a_builder_needs_is_named_with_its_package(tmp_path: Path) -> None:
    recipe = tmp_path / "mine" / "builder.toml"
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    asked = ["doctor", "--builder", "mine", "--builders", str(tmp_path)]
    said = exits(4, *asked)
    assert "no-such-compiler, no/such.h are not installed on host local" in said
    assert re.search("install .*no-such-compiler", said)
    assert re.search("install .*(libno-dev|no-devel)", said)
    assert "stdio.h" not in said
    assert "not fit to measure on: 1 refused" in said
    recipe.write_text(RECIPE.replace("no/such.h", "stdlib.h").replace("no-such-compiler", "gcc"))
    said = exits(0, *asked)
    assert "everything that mine needs to be built is installed: gcc, make, stdio.h, stdlib.h" in said


def test_a_host_that_cannot_be_used_is_a_finding_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(f'[hosts.odd]\nroot = "{tmp_path}/file/root"\n')
    said = exits(4, "doctor", "odd", "--json", "--hosts", str(inventory))
    [finding] = json.loads(said)["findings"]
    assert finding["level"] == "refused"
    assert "cannot be created" in finding["text"]


def test_a_workload_needs_its_system() -> None:
    said = exits(3, "doctor", "--workload", "update-index")
    assert "--builder" in said


def test_without_a_workload_those_of_the_system_decide_whether_sysbench_is_needed(tmp_path: Path) -> None:
    """Where a suite is broken, it is unknown that it is not."""
    drivers = [load_builder(name).driver for name in ("rocksdb", "command", "demo", "postgres")]
    assert [only_commands(driver, None) for driver in drivers] == [True, True, False, False]
    suite = tmp_path / "mine" / "suite.toml"
    suite.parent.mkdir()
    broken = """summary = "s"\ndriver = "demo"\n[defaults]\ngroup = "g"\nsummary = "s"
[workloads]\none.script = "no-such.lua"\n"""
    for text in (broken, "what is this"):
        suite.write_text(text)
        assert not only_commands("demo", tmp_path)


def test_all_hosts_at_once(tmp_path: Path, seal: Path) -> None:
    (tmp_path / "file").touch()
    configuration = seal / ".config" / "perfbisect" / "config.toml"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(f'[shared]\nbuilds = "{tmp_path}/file/store"\n')
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(
        f'[hosts.quiet]\nroot = "{tmp_path}/quiet"\nbuild_hosts = ["b1", "nobody"]\n'
        f'[hosts.b1]\nroot = "{tmp_path}/b1"\n[hosts.odd]\nroot = "{tmp_path}/file/root"\n'
    )
    report = json.loads(exits(4, "doctor", "--all", "--json", "--hosts", str(inventory)))
    hosts = {host["name"]: host for host in report["hosts"]}
    assert {name: host["verdict"] for name, host in hosts.items() if name != "local"} == {
        "quiet": "not fit",
        "b1": "fit",
        "odd": "cannot be used",
    }
    assert hosts["b1"]["builds_for"] == ["quiet"]
    assert hosts["quiet"]["findings"][0]["text"] == "nobody, which is to build for host quiet, is not in hosts.toml"
    assert {finding["topic"] for finding in hosts["b1"]["findings"]}.isdisjoint({"perf", "governor", "load"})
    assert [finding["level"] for finding in report["shared"]] == ["warning"]
    said = exits(4, "doctor", "--all", "--hosts", str(inventory))
    assert f"\nshared builds:\n  warning  the shared builds in {tmp_path}/file/store cannot be used" in said
    assert "b1     builds for quiet  fit" in said
    assert "cannot be created" in said
    assert "quiet and odd are not fit" in said or "quiet, odd" in said or "local, quiet and odd" in said


def test_build_hosts_that_would_build_differently_are_refused(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.toml"
    inventory.write_text(
        f'[hosts.local]\nroot = "{tmp_path}/quiet"\nbuild_hosts = ["b1", "b2"]\n'
        f'[hosts.b1]\nroot = "{tmp_path}/b1"\n[hosts.b2]\nroot = "{tmp_path}/b2"\n'
    )
    said = exits(4, "doctor", "--all", "--hosts", str(inventory))
    assert (
        f"the build hosts of local have different root folders, which are part of what they build: {tmp_path}/b1 on b1"
        in said
    )
    assert "3 hosts: 1 problem with build hosts must be solved." in said


def test_all_is_said_instead_of_a_host() -> None:
    assert "leave out HOST" in exits(3, "doctor", "--all", "local")
