"""Which tests reach which lines of the package: a plugin of pytest, and what is made of its records.

    reach.py prepare                       # in the environment of the tests: programs that they start are recorded as well
    REACH=FOLDER pytest -p reach -n 4 …    # with the folder of this file in PYTHONPATH
    reach.py collect FOLDER REACH.json     # prints how much is covered

Each process writes files of its own: what coverage.py has seen, the seconds of each test, and where a fixture was made that
several tests share. Such a fixture is the work of the test that it was made for; whoever uses it reaches the same lines.
"""

import atexit
import json
import os
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage, CoverageData

ROOT = Path.cwd()
RUNNING = "PYTEST_CURRENT_TEST"
START = f"import os; 'REACH' in os.environ and '{RUNNING}' in os.environ and __import__('reach').record_program()\n"
EVERYWHERE = 400  # tests: a fixture that more of them use is no work of its own

folder = Path(os.environ.get("REACH", "."))
source = os.environ.setdefault("REACH_SOURCE", str(ROOT / "bisect" / "perfbisect"))
worker = os.environ.get("PYTEST_XDIST_WORKER", "")
recorded: Coverage | None = None


def coverage(context: str = "") -> Coverage:
    """In memory until its end: some tests take another user for a while."""
    made = Coverage(data_file=None, branch=True, source=[source], context=context, config_file=False)
    made.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported", "module-not-measured"])
    made.start()
    return made


def write(kind: str, data: bytes) -> None:
    """A new file for what a process has recorded."""
    (folder / f"{kind}.{os.getpid()}.{time.time_ns()}").write_bytes(data)


def keep(made: Coverage, process: int) -> None:
    """Write what was seen; not in a child that was forked off."""
    if os.getpid() == process:
        made.stop()
        write("lines", made.get_data().dumps())


def record_program() -> None:
    """Record a program that a test has started, as part of that test. Python may ask for it twice."""
    global recorded
    if recorded:
        return
    name, _, phase = os.environ[RUNNING].rpartition(" ")
    recorded = coverage(f"{name}|{phase.strip('()')}")
    atexit.register(keep, recorded, os.getpid())


def name_of(item: pytest.Item) -> str:
    """Of a test, without the group that xdist appends."""
    mark = item.get_closest_marker("xdist_group")
    return item.nodeid.removesuffix(f"@{mark.args[0]}") if mark else item.nodeid


records: list[dict[str, Any]] = []


def pytest_configure() -> None:
    """As a plugin: begin, in each worker."""
    global recorded
    if worker:
        recorded = coverage()


def pytest_unconfigure() -> None:
    """As a plugin: write what was recorded."""
    if recorded:
        keep(recorded, os.getpid())
        write("tests", json.dumps(records).encode())


def phase(item: pytest.Item, name: str) -> None:
    """What runs from now on is this phase of this test."""
    if recorded:
        recorded.switch_context(f"{name_of(item)}|{name}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """As a plugin: its seconds, and the fixtures that it shares with others."""
    began = time.monotonic()
    result = yield
    definitions = item._fixtureinfo.name2fixturedefs.items()  # type: ignore[attr-defined]
    shared = [f"{found[-1].baseid}::{name}" for name, found in definitions if found and found[-1].scope != "function"]
    records.append({"test": name_of(item), "seconds": time.monotonic() - began, "shared": shared})
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """As a plugin."""
    phase(item, "setup")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """As a plugin."""
    phase(item, "call")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """As a plugin."""
    phase(item, "teardown")


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """As a plugin: for which test a shared fixture is made."""
    if fixturedef.scope != "function":
        test = os.environ.get(RUNNING, "").rpartition(" ")[0]
        records.append({"fixture": f"{fixturedef.baseid}::{fixturedef.argname}", "test": test})


def collect(into: Path) -> None:
    """One file of all records; prints the shares of statements and branches that are covered."""
    rows = [row for path in sorted(folder.glob("tests.*")) for row in json.loads(path.read_text())]
    seconds = {row["test"]: row["seconds"] for row in rows if "seconds" in row}
    users: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for fixture in row.get("shared", ()):
            users[fixture].add(row["test"])
    made: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if len(users[fixture := row.get("fixture", "")]) < EVERYWHERE:
            made[row["test"]] |= users[fixture]
    number = {test: place for place, test in enumerate(seconds)}
    lines: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    whole = CoverageData(no_disk=True)
    for path in folder.glob("lines.*"):
        data = CoverageData(no_disk=True)
        data.loads(path.read_bytes())
        whole.update(data)
        for file in (file for file in data.measured_files() if file.endswith(".py")):  # and not of templates
            reached = lines[Path(file).relative_to(ROOT).as_posix()]
            for line, contexts in data.contexts_by_lineno(file).items():
                for test, _, part in (context.rpartition("|") for context in contexts):
                    reached[line].update(
                        number[each] for each in {test, *(made[test] if part == "setup" else ())} & {*number}
                    )
    into.write_text(json.dumps({
        "tests": [*seconds], "seconds": [*seconds.values()],
        "lines": {file: {line: sorted(tests) for line, tests in found.items()} for file, found in lines.items()},
    }))  # fmt: skip
    report = Coverage(data_file=None, branch=True, source=[source], config_file=False)
    report.get_data().update(whole)
    print(f"statements and branches covered: {report.report(file=StringIO()):.2f} %")


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        Path(sysconfig.get_path("purelib"), "reach.pth").write_text(f"{Path(__file__).parent}\n{START}")
    else:
        folder = Path(sys.argv[2])
        collect(Path(sys.argv[3]))
