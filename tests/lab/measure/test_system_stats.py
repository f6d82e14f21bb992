import subprocess
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.lab.measure import perf
from perfbisect.lab.measure.perf import beside, means, parse_iostat, parse_vmstat

OUTPUTS = Path(__file__).parents[2] / "outputs"


def lines(name: str) -> list[str]:
    return (OUTPUTS / name).read_text().splitlines()


def test_repeated_headers_the_first_row_and_a_broken_one_are_left_out() -> None:
    rows = parse_vmstat(lines("vmstat.txt"))
    assert [row["cs"] for row in rows] == [794, 600, 892]
    assert rows[0]["us"] == 95


def test_columns_are_found_by_name() -> None:
    (row,) = parse_vmstat(lines("vmstat-new.txt"))
    assert (row["cs"], row["us"], row["id"]) == (1502, 49, 49)


@pytest.mark.parametrize("name", ["iostat-10.txt", "iostat-11.txt", "iostat-12.txt"])
def test_every_layout_of_iostat(name: str) -> None:
    row = parse_iostat(lines(name))[0]
    assert row == {"r/s": 310.0, "w/s": 44.0, "rkB/s": 4960.0, "wkB/s": 1232.0, "%util": 7.2}


def test_each_second_of_iostat_is_a_row() -> None:
    assert [row["r/s"] for row in parse_iostat(lines("iostat-12.txt"))] == [310.0, 100.0]


def test_only_the_window_counts() -> None:
    rows = [{"cs": float(second)} for second in range(10)]
    assert means(rows, 2.2, 6.2) == {"cs": pytest.approx(3.5)}, "seconds 2 to 5"
    assert means(rows, 0.0, 1.0) == {"cs": 0.0}
    assert means([], 0.0, 9.0) == {}


@pytest.mark.tools
def test_vmstat_runs_as_long_as_the_command_and_the_status_is_the_commands(tmp_path: Path) -> None:
    argv = beside(["sh", "-c", "sleep 1.2; exit 3"], PurePosixPath(tmp_path), vmstat=True, device="")
    assert subprocess.run(argv, check=False).returncode == 3
    rows = parse_vmstat((tmp_path / "vmstat").read_text().splitlines())
    assert len(rows) == 1
    began, ended = perf.read_stamps((tmp_path / "time").read_text())
    assert ended.at - began.at >= 1.2
    assert began.before <= began.after <= ended.before <= ended.after
    assert not (tmp_path / "iostat").exists()
