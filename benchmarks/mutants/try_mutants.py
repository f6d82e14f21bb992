"""Tries mutants: each in a copy of the project, with the tests that reach its line, the quick ones first.

    try_mutants.py MUTANTS.json RESULTS.json REACH.json COPY [COPY ...] [--before RESULTS.json]

MUTANTS.json is written by mutants.py, REACH.json by reach.py. A COPY is a clone with its own ``.venv``, into which it is
installed editable; each copy is one process. Results that are in RESULTS.json already are kept. The test
that killed a mutant before is tried first.
"""

import argparse
import ast
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
from mutants import PACKAGE, Mutant, changed, everything, found_again

BUDGET = 40.0  # seconds of tests for a mutant, by what they took when they were recorded
LIMIT = 120.0  # seconds, after which a mutant is killed; by the clock more on a busy machine
FIRST = 30  # tests; to collect all of them takes longer than to run these


def around(root: Path, mutant: Mutant) -> tuple[range, set[str] | None]:
    """The lines of a mutant's statement, of which a tracer sees some; and names that get their value there, if it runs
    when its module is loaded: None inside of a function.
    """
    lines = range(mutant.line, mutant.line + 1)
    names: set[str] | None = set()
    for node in ast.walk(ast.parse((root / mutant.file).read_text())):  # a statement comes before those inside of it
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
            body = getattr(node, "body", [])
            last = body[0].lineno - 1 if body and mutant.line < body[0].lineno else node.end_lineno or node.lineno
            lines = range(node.lineno, last + 1)
            match node:
                case ast.FunctionDef() if body[0].lineno <= mutant.line:
                    names = None
                case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)) if names is not None:
                    names.add(name)
                case ast.Assign(targets=[*targets]) if names is not None:
                    every = (each for target in targets for each in ast.walk(target))
                    names.update(each.id for each in every if isinstance(each, ast.Name))
    return lines, names


class Reach(NamedTuple):
    """What the tests do, as reach.py recorded it."""

    tests: list[str]
    seconds: list[float]  # of each
    lines: dict[str, dict[str, list[int]]]  # file, line, the tests that reach it

    def of(self, root: Path, mutant: Mutant) -> list[int]:
        """Tests that reach a mutant, quick ones first: up to ``BUDGET``, and the quickest.

        What runs when a module is loaded is reached by tests of lines that have its name, or else of the module.
        """
        here = self.lines.get(mutant.file, {})
        statement, names = around(root, mutant)
        found = {test for line in statement for test in here.get(str(line), [])}
        if names is not None:
            word = re.compile(rf"\b({'|'.join(names)})\b")
            for file, lines in self.lines.items() if names else ():
                source = (root / file).read_text().splitlines() or [""]
                found.update(*(tests for line, tests in lines.items() if word.search(source[int(line) - 1])))
            if not found:
                found.update(*here.values())
        chosen: list[int] = []
        spent = 0.0
        for test in sorted(found, key=lambda test: self.seconds[test]):
            spent += self.seconds[test]
            if chosen and spent > BUDGET:
                break
            chosen.append(test)
        return chosen


def tried(copy: Path, tests: list[str], limit: float) -> tuple[bool, str]:
    """Whether all of these tests pass in a copy, else what failed."""
    wanted, said = copy / ".mutant-tests", copy / ".mutant-failed"
    wanted.write_text("\n".join(tests))
    said.unlink(missing_ok=True)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    quiet = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-p", Path(__file__).stem]
    own = {"PYTHONPATH": str(Path(__file__).parent), "MUTANT_TESTS": str(wanted), "MUTANT_FAILED": str(said)}
    argv = ["prlimit", f"--cpu={LIMIT:.0f}", str(copy / ".venv/bin/python"), "-m", "pytest", *quiet, *files]
    limit *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(argv, cwd=copy, env=os.environ | own, start_new_session=True, **streams) as process:
        try:
            out = process.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            out = "time-out"
        finally:
            end(str(wanted), process.pid)
    if out == "time-out" or process.returncode < 0:
        return False, "time-out"
    failed = said.read_text() if said.exists() else "" if process.returncode == 0 else f"pytest: {out[-300:]}"
    return not failed, failed


def end(mark: str, group: int) -> None:
    """Kill what tests have left running: their process group, and jobs that have left it."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == group or mark.encode() in (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def outcome(copy: Path, mutant: Mutant, reach: Reach, first: str) -> dict[str, Any]:
    """What the tests say of one mutant; a test that fails without the mutant as well does not count."""
    tests = [reach.tests[number] for number in reach.of(copy, mutant)]
    if first in reach.tests:
        tests = [first, *(test for test in tests if test != first)]
    result: dict[str, Any] = {"mutant": mutant, "tests": len(tests), "unsound": []}
    file = copy / mutant.file
    source = file.read_text()
    parts = [part for part in (tests[:FIRST], tests[FIRST:]) if part]
    while parts:
        try:
            file.write_text(changed(source, mutant))
            forget(file)
            passed, failed = tried(copy, parts[0], LIMIT)
        finally:
            file.write_text(source)
            forget(file)
        if passed:
            parts.pop(0)
        elif failed in parts[0] and len(result["unsound"]) < 5 and not tried(copy, [failed], LIMIT)[0]:
            result["unsound"].append(failed)
            parts[0] = [test for test in parts[0] if test != failed]
        else:
            return result | {"outcome": "killed", "by": failed}
    return result | {"outcome": "survived" if tests else "not covered"}


def forget(file: Path) -> None:
    """Remove what Python has compiled of a file: it may have the same size and time as the next one."""
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """As a plugin: the tests that are wanted, in their order."""
    yield
    order = {name: number for number, name in enumerate(Path(os.environ["MUTANT_TESTS"]).read_text().splitlines())}
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """As a plugin: what failed first."""
    said = Path(os.environ["MUTANT_FAILED"])
    if report.failed and not said.exists():
        said.write_text(report.nodeid)


def run(chosen: Path, results: Path, reached: Path, copies: list[Path], before: Path | None) -> None:
    """Try each that has no result yet, in as many processes as there are copies."""
    earlier = json.loads(before.read_text()) if before else []
    killers = {tuple(row["chosen"].values()): row.get("by", "") for row in earlier}
    reach = Reach(**json.loads(reached.read_text()))
    rows = json.loads(results.read_text()) if results.exists() else []
    present = everything(copies[0])
    done = {tuple(row["chosen"].values()) for row in rows}
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        inside = [str(copy / ".venv/bin/python"), "-c", "import perfbisect; print(perfbisect.__file__)"]
        assert subprocess.run(inside, capture_output=True, text=True, check=True).stdout.startswith(str(copy / PACKAGE))
        # Nothing is left of a run that was killed.
        subprocess.run(["git", "diff", "--quiet", "--", str(PACKAGE)], cwd=copy, check=True)
        free.put(copy)

    def one(wanted: Mutant) -> None:
        mutant = found_again(wanted, present)
        copy = free.get()
        try:
            row = outcome(copy, mutant, reach, killers.get(tuple(wanted), "")) if mutant else {"outcome": "gone"}
        finally:
            free.put(copy)
        rows.append({"chosen": wanted._asdict(), **row})
        results.write_text(json.dumps(rows, indent=1))
        print(len(rows), row["outcome"], row.get("by", ""), wanted, flush=True)

    wanted = [Mutant(**row) for row in json.loads(chosen.read_text())]
    with ThreadPoolExecutor(len(copies)) as workers:
        list(workers.map(one, [each for each in wanted if tuple(each) not in done]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("mutants", "results", "reach"):
        parser.add_argument(name, type=Path)
    parser.add_argument("copies", nargs="+", type=lambda path: Path(path).resolve())
    parser.add_argument("--before", type=Path)
    args = parser.parse_args()
    run(args.mutants, args.results, args.reach, args.copies, args.before)
