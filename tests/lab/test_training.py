"""Training of builds on a real host: what happens to data that is damaged, or on which a build does not start."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from perfbisect.core.domain.events import Warned
from perfbisect.errors import BuildFailed, DataDamaged, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab.build.pgo import Instrumented
from perfbisect.lab.training import Trainer
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload

pytestmark = pytest.mark.tools

START = "[ $(cat {data}/by) = {commit} ] || exit 1; touch {socket}; exec sleep 600"
# It starts only on the data that it has loaded itself.
PARTICULAR = Server(
    initialise=[["sh", "-c", "echo {commit} >{data}/by"]],
    start=["sh", "-c", START],
    ready=["test", "-e", "{socket}"],
)


@pytest.fixture
def trainer(host: LocalHost, tmp_path: Path) -> Trainer:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    workload = Workload(
        name="w", suite="s", folder="/nowhere", driver="x", summary="", group="g", command=["true"],
        prepare_commands=[["sh", "-c", "echo row >{data}/rows"]],
    )  # fmt: skip
    builder = Builder(name="one", folder=str(recipe), summary="", driver="x")
    return Trainer(host, HostEntry(name=host.name), builder, (workload,))


def train(trainer: Trainer, name: str, reset: Callable[[], None]) -> list[Warned]:
    return [*trainer.train(Instrumented(name * 40, name * 16, trainer.builder, "1", PurePosixPath("/usr")), reset)]


def test_damaged_data_is_loaded_again_but_not_for_ever(trainer: Trainer) -> None:
    """Loading is not counted then, either."""
    resets = []

    def damage_once() -> None:
        resets.append(1)
        if len(resets) == 1:
            damage()

    def damage() -> None:
        [data] = Path(trainer.host.root, "datasets").glob("*/data")
        (data / "more").write_text("more")

    [warned] = train(trainer, "a", damage_once)
    assert "is damaged" in warned.text
    assert len(resets) == 2
    with pytest.raises(DataDamaged):
        train(trainer, "a", damage)


def test_data_that_is_refused(trainer: Trainer) -> None:
    """A build that does not start on the data of another is trained on its own."""
    trainer = replace(trainer, builder=msgspec.structs.replace(trainer.builder, server=PARTICULAR))
    resets: list[str] = []
    assert train(trainer, "a", lambda: resets.append("a")) == []
    [warned] = train(trainer, "b", lambda: resets.append("b"))
    assert "does not start on the data" in warned.text
    assert resets == ["a", "b", "b"]


def test_a_workload_that_fails_is_a_failure_of_the_build(trainer: Trainer) -> None:
    [workload] = trainer.workloads
    trainer = replace(trainer, workloads=(msgspec.structs.replace(workload, command=["false"]),))
    with pytest.raises(BuildFailed, match="fails in its training with s/w"):
        train(trainer, "a", lambda: None)


def test_a_sysbench_without_the_driver_is_a_fault_of_the_host(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "sysbench"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf 'Compiled-in database drivers:\\n  mysql - MySQL driver\\n\\nmore\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    [workload] = trainer.workloads
    by_sysbench = msgspec.structs.replace(workload, command=[], script="w.lua", driver="pgsql")
    builder = msgspec.structs.replace(trainer.builder, driver="pgsql")
    with pytest.raises(EnvironmentFailure, match="compiled without its pgsql driver"):
        replace(trainer, builder=builder, workloads=(by_sysbench,)).check()
    replace(trainer, builder=msgspec.structs.replace(builder, driver="mysql"), workloads=(by_sysbench,)).check()
