"""The checks of benchmarks/faults refuse what they are there for: each damage to a hunt that holds is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults"
# A hunt with two runs of the commits 0 and 2, the second of which is slow; then one thing is damaged.
SCRIPT = """\
import sys
from dataclasses import replace
from pathlib import Path
from checks import check
from history import Kept, Run
from ledger import read_ledger
from repository import Range
from session import Session

folder = Path(sys.argv[1])
ledger = "begin run 7 0 1.0\\nend run 7 0 1.1 1000.5\\nbegin run 8 2 1.2\\nend run 8 2 1.3 600.25\\n"
kept = Kept((), 1, {1: ("RunFinished", "{}"), 2: ("RunFinished", "{}")}, (Run("a", 1000.5), Run("c", 600.25)), ("b",),
            "Found", "c")
output = '{"event":"RunFinished","facts":{"reported":1000.5}}\\n'
session = Session((), folder / "output", 0, 0, 80 << 20)
exec(sys.argv[2])
(folder / "ledger").write_text(ledger)
(folder / "output").write_text(output)
print("\\n".join(check(kept, read_ledger(folder / "ledger"), Range(("a", "b", "c"), 2, frozenset({1})), [session])))
"""


def found(folder: Path, damage: str) -> str:
    path = [BENCHMARK, BENCHMARK.parents[1] / "tests"]
    argv = [sys.executable, "-c", f"import sys; sys.path[:0] = {json.dumps([str(each) for each in path])}\n{SCRIPT}"]
    return subprocess.run([*argv, str(folder), damage], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("kept = replace(kept, runs=(kept.runs[0], *kept.runs[:1]))", "counts 2 times"),
        ("kept = replace(kept, runs=(kept.runs[0], Run('c', 601.5)))", "no execution had the rate 601.5"),
        ("kept = replace(kept, runs=(kept.runs[0], Run('b', 600.25)))", "is entered as one of b"),
        ("kept = replace(kept, runs=kept.runs[:1])", "2 runs in the log, 1 in the table"),
        (
            "kept = replace(kept, runs=kept.runs[:1], events={1: ('RunFinished', '')})",
            "1 runs had ended and do not count",
        ),
        ("output += output.replace('1000.5', '999.5')", "1 runs were shown but are not in the history"),
        ("ledger += 'beside 8 7\\n'", "had another execution beside it"),
        ("ledger = ledger.replace('begin run 8', 'beside 8\\nbegin run 8')", "had another execution beside it"),
        ("kept = replace(kept, verdict='NotReproduced', culprit='')", "the verdict is NotReproduced"),
        ("kept = replace(kept, culprit='b')", "the verdict is Found b"),
        ("kept = replace(kept, verdict='', culprit='')", "the verdict is missing"),
        ("kept = replace(kept, skipped=('b', 'c'))", "skipped without a fault of their own: commits [2]"),
        ("kept = replace(kept, damage=('row 3 missing from index',))", "row 3 missing"),
        ("kept = replace(kept, hunts=2)", "2 hunts"),
        ("kept = None", "there is no history"),
        ("session.status = 70", "ended with status 70"),
        ("session.status = -11", "ended with status -11"),
        ("output += 'Traceback (most recent call last):'", "printed a traceback"),
        ("session.memory = 300 << 20", "took 300 MiB"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: str, sentence: str) -> None:
    assert sentence in found(tmp_path, damage)


def test_a_hunt_that_holds_is_not_accused(tmp_path: Path) -> None:
    assert found(tmp_path, "session.status = 130") == ""
