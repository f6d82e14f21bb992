"""Training of builds (PGO): compiler options, identities of trainings, and unusable datasets and profiles."""

import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace as changed

from labs import workload_of
from perfbisect.core.domain.events import Warned
from perfbisect.errors import BuildFailed, DatasetDamaged, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab import training
from perfbisect.lab.building.plan import InstrumentedBuild, PgoBuildKind, training_identity, with_profile_options
from perfbisect.lab.training import LIMIT, SECONDS, Trainer, shortened_for_training
from perfbisect.recipes.builder import Builder, Server, Variant
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import load_training_workloads
from program import executable
from waiting import finish

VARIANT = Variant(cflags="-O2", train="*")
SERVER = Server(initialise=[], start=["serve"], ready=["true"], settings={"cache": "{cache}", "sync": True})
# A server that starts only on data that the same commit has loaded.
PARTICULAR = Server(
    initialise=[["sh", "-c", "echo {commit} >{data}/by"]],
    start=["sh", "-c", "[ $(cat {data}/by) = {commit} ] || exit 1; touch {socket}; exec sleep 600"],
    ready=["test", "-e", "{socket}"],
)


@pytest.fixture
def trainer(host: LocalHost, tmp_path: Path) -> Trainer:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    load = [["sh", "-c", "echo row >{data}/rows"]]
    workload = workload_of(driver="x", command=["true"], time=300.0, prepare_commands=load)
    builder = Builder(name="one", folder=str(recipe), summary="", driver="x")
    return Trainer(host, HostEntry(name=host.name), builder, (workload,))


def with_workload(trainer: Trainer, **changes: object) -> Trainer:
    return replace(trainer, workloads=(changed(trainer.workloads[0], **changes),))


def test_profile_options_follow_the_options_of_the_variant() -> None:
    """The path of the root contains a space."""
    folder = PurePosixPath("/a root/profile")
    for compiler, used in (("gcc", ""), ("clang", "/merged.profdata")):
        assert with_profile_options(VARIANT, compiler, PgoBuildKind.PLAIN, folder) == VARIANT
        phases = {
            PgoBuildKind.INSTRUMENTED: f"-fprofile-generate={folder}",
            PgoBuildKind.OPTIMISED: f"-fprofile-use={folder}{used}",
        }
        for phase, option in phases.items():
            variant = with_profile_options(VARIANT, compiler, phase, folder)
            assert shlex.split(variant.cflags)[:2] == ["-O2", option]
            assert shlex.split(variant.ldflags) == [option]


def test_identity_of_a_training_depends_on_workloads_and_server(trainer: Trainer) -> None:
    """The order of the workloads, the host, and the sizes of the host do not change the identity."""
    known = training_identity(trainer, VARIANT, "gcc")
    [workload] = trainer.workloads
    elsewhere = replace(trainer, entry=HostEntry(memory=99, server_cpus="1", jobs=3))
    assert training_identity(elsewhere, VARIANT, "gcc") == known
    for other in (with_workload(trainer, args={"rows": 10}), replace(trainer, workloads=(workload, workload))):
        assert training_identity(other, VARIANT, "gcc") != known
    assert training_identity(trainer, VARIANT, "clang") != known
    assert training_identity(None, VARIANT, "gcc") == {}

    def identity(**changes: object) -> str:
        served = changed(trainer.builder, server=changed(SERVER, **changes))
        return replace(trainer, builder=served, entry=HostEntry(memory=99 if changes else 0)).training_key

    served = identity()
    assert served not in (trainer.training_key, "") and identity(ready=["false"]) == served
    for change in ({"settings": {"cache": "{cache}", "sync": False}}, {"start": ["serve", "-f"]}, {"create": [["c"]]}):
        assert identity(**change) != served
    first, second = (changed(workload, name=name) for name in "ab")
    builder = changed(trainer.builder, variants={"own": VARIANT})
    assert load_training_workloads(builder, "own", [second, first]) == (first, second)


def test_training_run_is_short(trainer: Trainer) -> None:
    short, own = (
        shortened_for_training(each.workloads[0]) for each in (trainer, with_workload(trainer, time=1.0, timeout=5.0))
    )
    assert (short.warmup, short.time, short.timeout) == (0.0, SECONDS, LIMIT)
    assert (own.time, own.timeout) == (1.0, 5.0)
    assert with_workload(trainer, time=3000.0).training_key == trainer.training_key, "a longer time is cut"


def instrumented(trainer: Trainer, name: str, compiler: str = "gcc") -> InstrumentedBuild:
    of, profile = (name * 40, name * 16), trainer.host.root / "profile"
    return InstrumentedBuild(*of, trainer.builder, "1", PurePosixPath("/usr"), profile, compiler, compiler)


def train(trainer: Trainer, name: str) -> tuple[list[Warned], bool]:
    """The warnings, and whether there is a profile."""
    return finish(trainer.train(instrumented(trainer, name)))


@pytest.mark.tools
def test_profile_does_not_contain_the_loading(trainer: Trainer) -> None:
    """Loading writes counts into the profile folder, as the run does."""
    profile = Path(trainer.host.root, "profile")
    profile.mkdir()
    load = [["sh", "-c", f"echo row >{{data}}/rows; echo x >{profile}/of-loading.gcda"]]
    for command, counts in (["true"], False), (["sh", "-c", f"echo x >{profile}/of-run.gcda"], True):
        assert train(with_workload(trainer, prepare_commands=load, command=command), "a") == ([], counts)
        assert [file.name for file in profile.iterdir()] == ["of-run.gcda"] * counts


@pytest.mark.tools
def test_number_of_loads_after_damaged_data_is_limited(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    whole, times = training.visit.begin_visit, 1

    def damaging(*given: Any) -> object:
        loaded.append(1)
        if len(loaded) <= times:
            [data] = Path(trainer.host.root, "datasets").glob("*/data")
            (data / "more").write_text("more")
        return whole(*given)

    monkeypatch.setattr(training.visit, "begin_visit", damaging)
    [warned], _ = train(trainer, "a")
    assert "is damaged" in warned.text
    assert len(loaded) == 2
    times = 99
    with pytest.raises(DatasetDamaged):
        train(trainer, "a")


@pytest.mark.tools
def test_refused_data_trains(trainer: Trainer) -> None:
    """A build whose workload fails during the training fails."""
    trainer = replace(trainer, builder=changed(trainer.builder, server=PARTICULAR))
    assert train(trainer, "a")[0] == []
    [warned], _ = train(trainer, "b")
    assert "does not start on the data" in warned.text
    with pytest.raises(BuildFailed, match="fails during the training with s/w"):
        train(with_workload(trainer, command=["false"]), "a")


@pytest.mark.tools
def test_sysbench_without_the_driver_is_a_failure_of_the_host(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = "#!/bin/sh\nprintf 'Compiled-in database drivers:\\n  mysql - MySQL driver\\n\\nmore\\n'\n"
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / "sysbench", poor).parent), prepend=":")
    trainer = with_workload(trainer, command=[], script="w.lua", driver="pgsql")
    replace(trainer, builder=changed(trainer.builder, driver="mysql")).check_workload_programs()
    with pytest.raises(EnvironmentFailure, match="compiled without its pgsql driver"):
        replace(trainer, builder=changed(trainer.builder, driver="pgsql")).check_workload_programs()


@pytest.fixture
def counts(trainer: Trainer, tmp_path: Path) -> Path:
    """The raw profile of one process of a program that clang compiled."""
    if not (shutil.which("clang") and shutil.which("llvm-profdata")):
        pytest.skip("no clang with a profile: apt-get install clang llvm libclang-rt-dev")
    folder, program = instrumented(trainer, "a").profile_folder, tmp_path / "program"
    words = ["clang", f"-fprofile-generate={folder}", "-x", "c", "-", "-o", program]
    if subprocess.run(words, input=b"int main(void) { return 0; }", capture_output=True, check=False).returncode:
        pytest.skip("clang has no runtime of profiles: apt-get install libclang-rt-dev")
    subprocess.run([program], check=True)
    [whole] = Path(folder).glob("*.profraw")
    return whole


@pytest.mark.tools
def test_unreadable_profile_is_no_failure_of_the_host(trainer: Trainer, counts: Path) -> None:
    """A process that is killed while it writes leaves such a profile, which is not merged with the others."""
    build = instrumented(trainer, "a", "clang")
    counts.with_name("cut.profraw").write_bytes(counts.read_bytes()[:40])
    assert training.prepare_profile(trainer.host, build)
    counts.with_name("merged.profdata").unlink()
    counts.unlink()
    assert not training.prepare_profile(trainer.host, build)


@pytest.mark.tools
def test_profile_of_another_clang_version_is_a_failure_of_the_host(trainer: Trainer, counts: Path) -> None:
    content = bytearray(counts.read_bytes())
    content[8] = 99  # the version
    counts.write_bytes(content)
    with pytest.raises(EnvironmentFailure, match=r"cannot be merged .*version") as raised:
        training.prepare_profile(trainer.host, instrumented(trainer, "a", "clang"))
    assert "apt-get install llvm" in raised.value.advice
