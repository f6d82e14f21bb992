"""Trees of the demo engine, written and built for tests."""

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from perfbisect.demo.plan import Effort, Tree, applied, first_tree, read_changes

FLAGS = "-O1 -Wall -Wextra -Werror"
Build = Callable[..., subprocess.CompletedProcess[str]]


def everything() -> Tree:
    """The engine with all changes, with checks at every change of its index."""
    waiting = [
        change
        for kind in ("features", "refactorings", "tests", "broken", "index", "further")
        for change in read_changes(kind)
    ]
    order, there = [], set[str]()
    while waiting:
        ready = next(change for change in waiting if there.issuperset(change.needs))
        waiting.remove(ready)
        order.append(ready.filled(Effort(every=1, size=256).words))
        there.add(ready.name)
    return applied(order, first_tree())


@pytest.fixture(scope="session", params=["first release", "every change"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine's sources: as first released, or with all changes."""
    folder = tmp_path_factory.mktemp("engine")
    tree = first_tree() if request.param == "first release" else everything()
    for path, text in tree.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def make(
    source: Path, build: Path, targets: Iterable[str] = (), flags: str = FLAGS
) -> subprocess.CompletedProcess[str]:
    """Run the Makefile of ``source`` in the folder ``build``; both outputs are in stdout."""
    build.mkdir(parents=True, exist_ok=True)
    argv = ["make", "-j2", "-f", f"{source}/Makefile", "CC=gcc", f"CFLAGS={flags}", *targets]
    return subprocess.run(
        argv, check=False, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )


@pytest.fixture(scope="session")
def run_make() -> Build:
    """The function ``make(source, build, targets, flags)``."""
    return make


@pytest.fixture(scope="session")
def library(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library built from ``engine``."""
    build = tmp_path_factory.mktemp("build")
    done = make(engine, build)
    assert done.returncode == 0, done.stdout
    return build / "libdemo.so"
