"""Reasons to refuse a hunt or to warn before a hunt. Missing programs are simulated by a PATH without the programs."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.core.domain.events import Warned
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.local import LocalHost
from perfbisect.lab.building.toolchain import NEEDED, needed_compilers
from perfbisect.lab.checks import CheckRequest, Severity, preflight
from perfbisect.recipes.builder import Build, Builder, Packages, Server, Variant
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload
from program import executable

WORKLOAD = Workload(name="w", suite="s", driver="pgsql", summary="", group="point", statement="select 1")
HERE = HostEntry(name="here")
OTHERS = "sysbench sh env df cat lscpu uname perf vmstat gcc true test taskset grep head ls mktemp cp rm date"
USED = {*NEEDED, *preflight.TO_MEASURE, *OTHERS.split()}
VIRTUAL = (Path(__file__).parents[2] / "outputs" / "perf-virtual.csv").read_text()
WITHOUT_COUNTERS = f"#!/bin/sh\ncat >&2 <<'END'\n{VIRTUAL}END\n"
SERVER = Server(initialise=[["a"]], start=["b"], ready=["c"])


def builder(needs: list[str] | None = None, **changes: object) -> Builder:
    build = Build(compile=[["make", "CC={cc}"]], install=[], artifacts=["x"], needs=needs or [])
    usual = Builder(name="b", summary="", driver="d", variants={"o2nofp": Variant()}, build=build)
    return replace(usual, **changes)


def built(**changes: object) -> Builder:
    """A builder with these changes to its build."""
    return replace(builder(), build=replace(builder().build, **changes))


def inspection_of(
    host: LocalHost, recipe: Builder | None = None, metric: str = "qps", **entry: object
) -> tuple[Warned, ...]:
    there = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    return warned(CheckRequest(host, there, metric, recipe or builder(), "", (WORKLOAD,)))


def refused(match: str, host: LocalHost, recipe: Builder | None = None, metric: str = "qps", **entry: object) -> str:
    """The advice of an inspection that refuses the hunt."""
    with pytest.raises(EnvironmentFailure, match=match) as caught:
        inspection_of(host, recipe, metric, **entry)
    return caught.value.advice


def warned(request: CheckRequest) -> tuple[Warned, ...]:
    return preflight.warnings_or_refusal(preflight.measurement_findings(preflight.inspect_host(request)))


def needed(entry: HostEntry, recipe: Builder, variant: str = "") -> set[str]:
    request = CheckRequest(LocalHost("here", PurePosixPath("nowhere")), entry, builder=recipe, variant=variant)
    return {
        *preflight.needed_programs(request),
        *(needed_compilers(recipe.build, find_variant(recipe, variant)) if recipe.build else []),
    }


@pytest.fixture
def take_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that removes programs from PATH, or replaces them."""
    folder, usual = tmp_path / "bin", os.environ["PATH"]

    def only(*gone: str, **replaced: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for program in USED - {*gone}:
            found = shutil.which(program, path=usual)
            if program in replaced:
                executable(folder / program, replaced[program])
            elif found:
                (folder / program).symlink_to(found)
        monkeypatch.setenv("PATH", str(folder))

    return only


def test_only_the_compilers_that_a_variant_uses_are_needed() -> None:
    """A compiler that is only in the environment may be absent."""
    recipe = builder(variants={"o2nofp": Variant(), "other": Variant(cc="clang")})
    for of, variant, used in (
        (recipe, "", {"gcc"}),
        (recipe, "other", {"clang"}),
        (built(env={"CXX": "{cxx}"}), "", {"gcc"}),
        (built(compile=[["make", "CC={cc}", "CXX={cxx}"]]), "", {"gcc", "g++"}),
    ):
        assert {"gcc", "g++", "clang"} & needed(HERE, of, variant) == used


def test_programs_for_runs_depend_on_host_and_recipe() -> None:
    """taskset is for pinned CPUs, setpriv for a server that refuses root. Without a build, no compiler is needed."""
    programs = needed(HERE, builder(build=None))
    assert "sysbench" in programs
    assert not {"git", "ccache", "gcc", "ld", "objcopy"} & programs
    assert not {"taskset", "setpriv"} & needed(HERE, builder())
    assert "taskset" in needed(HostEntry(client_cpus="0"), builder())
    assert "setpriv" in needed(HERE, builder(server=replace(SERVER, refuses_root=True)))


def test_workload_of_a_command_needs_no_sysbench(host: LocalHost) -> None:
    command = replace(WORKLOAD, statement="", command=["bench"])
    for workloads, is_needed in ((None, True), ((WORKLOAD,), True), ((command,), False), ((command, WORKLOAD), True)):
        assert ("sysbench" in preflight.needed_programs(CheckRequest(host, HERE, workloads=workloads))) == is_needed


@pytest.mark.tools
def test_missing_program_is_reported_with_its_package(host: LocalHost, take_away: Callable[..., None]) -> None:
    for program, package, recipe in (
        ("cmp", "diffutils", builder()),  # which compares a build before each visit
        ("cmp", "diffutils", builder(build=None)),
        ("bison", "bison", builder(["bison"])),
        ("ccache", "ccache", builder()),
    ):
        take_away(program)
        assert f"apt-get install {package}" in refused(f"{program} is not installed on host here", host, recipe)


@pytest.mark.tools
def test_missing_needs_of_a_build_are_reported_with_packages(host: LocalHost) -> None:
    needs = ["make", "stdio.h", "no/such.h", "no-such-program"]
    own = {"no/such.h": Packages(debian="libno-dev", fedora="no-devel")}
    recipe = replace(built(needs=needs, packages=own), debian="lib-dev", fedora="x")
    for entry in ({}, {"build_hosts": ["here"]}):
        advice = refused(r"^no-such-program, no/such\.h are not installed", host, recipe, **entry)
        assert "install no-such-program libno-dev" in advice
        assert "apt-get build-dep lib-dev" in advice


@pytest.mark.tools
def test_host_that_builds_nothing_needs_no_build_tools(host: LocalHost, take_away: Callable[..., None]) -> None:
    request = CheckRequest(host, HostEntry(name="here", build_hosts=["x"]), builder=builder(["no/such.h"]))
    [finding, *_] = preflight.tool_findings(preflight.inspect_host(request))
    assert (finding.topic, finding.advice) == ("builder", "To check: bisect doctor x --builder b")
    take_away(*NEEDED, "gcc")
    inspection_of(host, build_hosts=["x"])
    refused(r"git.*not installed on host here", host, build_hosts=["here"])


REFUSING = "#!/bin/sh\necho 'Error: consider adjusting /proc/sys/kernel/perf_event_paranoid setting' >&2\nexit 255\n"


@pytest.mark.tools
def test_hunt_without_perf_can_measure_qps_but_not_cpu_time(host: LocalHost, take_away: Callable[..., None]) -> None:
    take_away(perf=REFUSING)
    for text, advice in (
        ("perf is not permitted", "sysctl kernel.perf_event_paranoid=1"),
        ("perf is not installed", "apt-get install"),
    ):
        assert any(text in each.text and advice in each.advice for each in inspection_of(host))
        refused(f"{text}.*cpu/o cannot be measured", host, metric="cpu/o")
        take_away("perf")


@pytest.mark.tools
def test_perf_without_counters_or_samples_is_reported(host: LocalHost, take_away: Callable[..., None]) -> None:
    """Without samples a hunt continues, but its verdict names no functions."""
    take_away(perf=WITHOUT_COUNTERS)
    assert len([warning for warning in inspection_of(host) if "no hardware counters" in warning.text]) == 1
    refused("does not count instructions, cycles", host, metric="ipc")
    for notes in (True, False):  # hunts show no notes, and do not try to sample
        request = preflight.inspect_host(CheckRequest(host, HERE, notes=notes))
        found = [each for each in preflight.measurement_findings(request) if each.topic == "profiles"]
        assert [each.level for each in found] == [Severity.NOTE] * notes
        assert all("perf takes no samples on host here" in each.text for each in found)


def test_invalid_workload_is_refused_at_once(host: LocalHost) -> None:
    for change, sentence in (
        ({"script": "typo.lua"}, r"Workload s/w has a script that does not exist: typo\.lua"),
        ({"prepare_script": "typo.lua"}, "does not exist"),
        ({"driver": "unheard"}, r"unheard has no sql\.lua to run it"),
        ({"time": 0.5}, "whole seconds"),
    ):
        with pytest.raises(UsageError, match=sentence):
            warned(CheckRequest(host, HERE, "qps", builder(), "", (WORKLOAD, replace(WORKLOAD, **change))))


@pytest.mark.tools
def test_cpu_number_that_the_host_lacks_is_refused(host: LocalHost) -> None:
    for key in ("server_cpus", "client_cpus"):
        with pytest.raises(UsageError, match=rf"hosts\.here\.{key}` is \"0,9998-10002:2\".*no CPU 9998"):
            inspection_of(host, **{key: "0,9998-10002:2"})
        inspection_of(host, **{key: "0"})


@pytest.mark.tools
def test_device_without_statistics_is_reported(host: LocalHost, take_away: Callable[..., None]) -> None:
    for device, sentence in (("no-such", "has no block device no-such"), ("/dev/sda", "iostat is not installed")):
        assert any(sentence in warning.text for warning in inspection_of(host, device=device))
        refused(rf"{sentence}.*, so wKB/o cannot be measured", host, device=device, metric="wKB/o")
        take_away("iostat")
    refused(r"has no `device` in hosts.toml.*r/o cannot be measured", host, metric="r/o")


@pytest.mark.tools
def test_valgrind_counts_embedded_libraries(host: LocalHost, take_away: Callable[..., None], tmp_path: Path) -> None:
    loop = Workload(name="loop", suite="s", driver="lib", summary="", group="g", command=["loop", "{events}"])

    def request(workload: Workload = loop, **changes: object) -> CheckRequest:
        return CheckRequest(host, HERE, "instructions/o", builder(**changes), "", (workload,))

    take_away(perf=WITHOUT_COUNTERS)
    with pytest.raises(EnvironmentFailure, match="does not count instructions") as caught:
        warned(request())
    assert "install valgrind" in caught.value.advice
    executable(tmp_path / "bin" / "valgrind", "#!/bin/sh\necho valgrind-3.21.0\n")
    said = [finding.text for finding in preflight.measurement_findings(preflight.inspect_host(request()))]
    assert any("counted exactly by valgrind 3.21.0" in text for text in said)
    warned(request())
    for reason, refusing in (
        ("is a server", request(WORKLOAD, server=SERVER)),
        ("2 threads", request(replace(loop, threads=2))),
    ):
        with pytest.raises(EnvironmentFailure, match=rf"valgrind cannot count it, either: .*{reason}"):
            warned(refusing)
