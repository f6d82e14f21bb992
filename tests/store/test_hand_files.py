"""Results that were made by hand: the forms of the field's files, and what is wrong in a file that is refused."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.trials import BY_HAND, Trial
from perfbisect.core.stats.paired_comparison import compared, spent_per_operation
from perfbisect.errors import UsageError
from perfbisect.report.terminal import lines
from perfbisect.report.trial import document
from perfbisect.store.hand_files import MOST_BYTES, Results, read_results
from perfbisect.store.hand_trials import HandMade, add, group_of, trial_of
from perfbisect.store.history import History

MET = """\
iostat, vmstat normalized by operation rate
samp\tr/s\trMB/s\tw/s\twMB/s\tr/o\trKB/o\twKB/o\to/s
305\t0.0\t0.0\t9000.0\t150.0\t0.773\t3.091\t{wkb}\t{qps}

samp\tcs/s\tcpu/s\tcs/o\tcpu/o
305\t28000\t13.4\t{cs}\t0.003065
"""
TABLE = """\
col-1 : x.my8028_rel_o2nofp.pk1
col-2 : x.my8040_rel_o2nofp.pk1

col-1\tcol-2
9000\t8370\tscan_range=100
6000.5\t3300.28\tupdate-index_range=100
100\t189\trandom-points.pre_range=1000
"""


def build(folder: Path, name: str, **speeds: float) -> Path:
    """A folder of one build, with a file for each test, and costs of update-index."""
    made = folder / f"x.{name}.pk1"
    made.mkdir(parents=True)
    for test, qps in speeds.items():
        shown = test.replace("_", "-")
        (made / f"sb.r.qps.{shown}.range100.pk1").write_text(f"{qps}\tinnodb {shown} range=100\n")
    (made / "sb.o.scan.range100.pk1").write_text("what sysbench printed\n")
    if "update_index" in speeds:
        text = MET.format(qps=speeds["update_index"], cs="26.111", wkb="19.725")
        (made / "sb.met.update-index.range100.pk1.dop1").write_text(text)
    return made


def read(*paths: Path) -> list[Results]:
    return [each for path in paths for each in read_results(path)]


def folded(made: HandMade) -> Trial:
    """The comparison as reports read it."""
    trial = Trial(1, made.request, sample.HOST, made.at, "done", origin=BY_HAND)
    for event in made.events:
        trial.add(made.at, event)
    return trial


def refused(path: Path, content: str | bytes) -> str:
    """Why a file is refused."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as found:
        read_results(path)
    return str(found.value).removeprefix(str(path))


def test_folders_of_builds(tmp_path: Path) -> None:
    first = build(tmp_path, "my8028_rel", update_index=6000.5, scan=10.25, point_query=1e4)
    second = build(tmp_path, "my8040_rel", update_index=3300.28, scan=9.0, point_query=1.1e4)
    made = trial_of(read(first, second), "", "dell32", 5.0)
    assert [each.name for each in made.request.subjects] == ["my8028_rel", "my8040_rel"]
    assert [(each.name, each.group) for each in made.request.works] == [
        ("point-query", "point"), ("scan", "range"), ("update-index", "write"),
    ]  # fmt: skip
    assert (made.request.builder, made.request.host, made.left_out) == ("innodb", "dell32", 0)
    ratios = [row.ratios[0] for row in compared(folded(made), "qps")]
    assert [round(each.ratio, 2) for each in ratios if each] == [1.1, 0.88, 0.55]
    assert all(each and each.interval is None and not each.real for each in ratios)
    assert [round(run.facts.qps, 4) for run in folded(made).runs if run.subject == 0] == [10000, 10.25, 6000.5]


def test_costs_are_those_of_the_file(tmp_path: Path) -> None:
    first, second = (build(tmp_path, name, update_index=qps) for name, qps in (("a", 5980.0), ("b", 6219.0)))
    met = second / "sb.met.update-index.range100.pk1.dop1"
    met.write_text(MET.format(qps=6219, cs="4.715", wkb="25.031").replace("0.773", "-nan"))
    made = trial_of(read(first, second), "", "pn53", 5.0)
    [found] = spent_per_operation(folded(made))
    base, other = found.absolute
    assert base == pytest.approx((0.003065, 26.111, 0.773, 3.091, 19.725, 5980))
    assert other[2] is None
    assert other[1] == pytest.approx(4.715)
    relative = [round(each, 2) for each in found.relative[0] if each is not None]
    assert relative == [1.0, 0.18, 1.0, 1.27, 1.04]
    assert value(folded(made).runs[0].facts, "cpu/o") is None, "the file has that of the whole machine, with the client"


def test_costs_alone_are_enough(tmp_path: Path) -> None:
    met = tmp_path / "sb.met.read-only.pre.range10000.pk1.dop40"
    met.write_text(MET.format(qps=50, cs=1, wkb=2))
    [found] = read_results(met, "8.0")
    assert (found.build, found.tests["read-only.pre_range=10000"].qps) == ("8.0", 50)


def test_the_published_table_is_printed_in_its_form(tmp_path: Path) -> None:
    path = tmp_path / "qps.abs.dell32.tsv"
    path.write_text(TABLE)
    made = trial_of(read(path), "mysql", "dell32", 5.0)
    printed = [str(line) for line in lines(document(folded(made), detailed=False), header=False)]
    assert printed[0].startswith("Throughput relative to: my8028_rel_o2nofp")
    assert printed[1:7] == [
        f"col-1 : my8040_rel_o2nofp = {path}",
        "",
        "col-1",
        " 1.89  random-points.pre_range=1000",
        " 0.93  scan",
        " 0.55  update-index",
    ]


def test_repetitions_have_intervals_and_copies_are_none(tmp_path: Path) -> None:
    days = [
        build(tmp_path / day, name, update_index=qps)
        for day, name, qps in (("mon", "a", 1000), ("tue", "a", 1010), ("mon", "b", 500), ("tue", "b", 506), ("wed", "b", 504))
    ]  # fmt: skip
    made = trial_of(read(*days), "", "x", 5.0)
    [ratio] = compared(folded(made), "qps")[0].ratios
    assert ratio is not None
    assert ratio.rounds == 2, "the third of b has no partner"
    assert ratio.interval is not None
    copy = build(tmp_path / "copy", "a", update_index=1000)
    with pytest.raises(UsageError, match="has the same results of a as"):
        trial_of(read(*days, copy), "", "x", 5.0)


def test_a_test_that_failed_is_no_ratio_of_zero(tmp_path: Path) -> None:
    folders = [build(tmp_path, name, scan=qps, point_query=5) for name, qps in (("a", 100.0), ("b", 0.0))]
    made = trial_of(read(*folders), "", "x", 5.0)
    assert "b fails in scan: no operations per second in" in str(
        list(lines(document(folded(made), detailed=False), header=False))[-1]
    )


def test_warm_up_is_left_out_and_one_build_is_no_comparison(tmp_path: Path) -> None:
    first, second = (tmp_path / name / "sb.r.qps" for name in "ab")
    for path in (first, second):
        path.parent.mkdir()
        path.write_text("12\tinnodb point-query.warm range=100\n13\tinnodb scan range=100\n")
    assert trial_of(read(first, second), "", "x", 5.0).left_out == 1
    with pytest.raises(UsageError, match="only one build"):
        trial_of(read(first), "", "x", 5.0)


def test_groups_are_those_of_published_tables() -> None:
    assert [group_of(test) for test in ("hot-points", "scan", "read-only_range=10", "read-write", "delete")] == [
        "point", "range", "range", "write", "write",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            "12\tinnodb scan range=100\nnan\tinnodb x range=1\n",
            ", line 2: 'nan' is no number of operations per second.",
        ),
        ("-5\tinnodb scan range=100\n", ", line 1: '-5' is no number"),
        ("1e99\tinnodb scan range=100\n", ", line 1: '1e99' is no number"),
        ("٣\tinnodb scan range=100\n", ", line 1: '٣' is no number"),
        ("12\tinnodb\n", ", line 1: expected QPS<TAB>engine test range=R, found"),
        ("12\t13\tinnodb scan range=100\n", ", line 1: results of several numbers of clients."),
        ("12\tinnodb scan range=100\n\n12\tinnodb scan range=100\n", ", line 3: scan has a result already, in "),
        ("12\tinnodb sc\x1b[31man range=100\n", ", line 1: characters that are not printable"),
        (b"12\tinnodb scan range=100\n\xff\n", ", line 2: no UTF-8 text."),
        (b"\0" * 9, ", line 1: characters that are not printable"),
        (f"12\tinnodb {'x' * 300} range=1\n", ", line 1: 'xxx"),
        (b"1" * (MOST_BYTES + 1), " has more than 4 MiB."),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, content: str | bytes, why: str) -> None:
    assert refused(tmp_path / "sb.r.qps", content).startswith(why)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (f"Relative to: x.a\n{TABLE}", ", line 1: a relative table"),
        (TABLE.replace("col-2 :", "col-3 :"), ", line 2: expected col-2, found"),
        (TABLE.replace("3300.28\t", ""), ", line 6: expected 2 values and a name"),
        (TABLE.replace("3300.28", "x"), ", line 6: 'x' is no number"),
        (TABLE.replace("col-1\t", ""), ", line 4: expected the titles col-1 to col-2"),
        (TABLE.replace("update-index", "scan"), ", line 6: scan has a result already"),
        (TABLE.replace("8040", "8028"), ": two columns have the same build."),
    ],
)
def test_a_damaged_table_is_refused_with_its_line(tmp_path: Path, content: str, why: str) -> None:
    assert refused(tmp_path / "qps.abs.tsv", content).startswith(why)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (MET.replace("\t{qps}", ""), ", line 3: 8 values below 9 titles."),
        (MET.format(qps=1, cs="soon", wkb=1), ", line 6: 'soon' is no number"),
        (MET.format(qps=1, cs=1, wkb=1) + "1\t2\n", ", line 7: values without titles"),
        (MET[: MET.index("305")], ": expected titles and values of iostat"),
        ("", ": expected titles and values of iostat"),
    ],
)
def test_damaged_costs_are_refused_with_their_line(tmp_path: Path, content: str, why: str) -> None:
    assert refused(tmp_path / "sb.met.scan.range100.pk1.dop1", content).startswith(why)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A FIFO that nobody writes would be waited for; a device would never end."""
    folder = tmp_path / "x.a.pk1"
    folder.mkdir()
    os.mkfifo(folder / "sb.r.qps.scan")
    with pytest.raises(UsageError, match="no regular file"):
        read_results(folder)
    (folder / "sb.r.qps.scan").unlink()
    (folder / "sb.r.qps.scan").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="no regular file"):
        read_results(folder)
    (folder / "sb.r.qps.scan").unlink()
    with pytest.raises(UsageError, match="has no file"):
        read_results(folder)


def test_what_is_stored_is_read_again_and_stored_once(tmp_path: Path) -> None:
    folders = [build(tmp_path, name, scan=qps, update_index=7) for name, qps in (("a", 100.0), ("b", 0.0))]
    made = trial_of(read(*folders), "mysql", "dell32", 5.0)
    history = History.open(tmp_path / "history.db")
    try:
        assert add(history, made, "anna") == ("c1", True)
        assert add(history, made, "anna") == ("c1", False)
        kept = history.trial("c1")
        same = folded(made)
        assert (kept.runs, kept.skips, kept.request, kept.state) == (same.runs, same.skips, made.request, "done")
        [listed] = history.trials()
        assert (listed.origin, listed.runs, kept.origin) == ("by hand: anna", 3, "by hand: anna")
    finally:
        history.close()


def test_all_of_it_or_nothing_is_stored(tmp_path: Path) -> None:
    folders = [build(tmp_path, name, scan=qps) for name, qps in (("a", 100.0), ("b", 90.0))]
    made = trial_of(read(*folders), "mysql", "dell32", 5.0)
    made.events[1] = replace(made.events[1], facts=replace(made.events[1].facts, seconds=float("nan")))
    history = History.open(tmp_path / "history.db")
    try:
        with pytest.raises(ValueError, match="JSON"):
            add(history, made, "")
        assert not history.trials()
        assert history.connection.execute("SELECT count(*) FROM events").fetchone() == (0,)
    finally:
        history.close()
