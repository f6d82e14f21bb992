"""Drawings of a page: SVG elements, runs, ranges and flame graphs; and the diff of a commit."""

import math
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from markupsafe import Markup

import sample_hunt as sample
from perfbisect.core.domain.orders import UNKNOWN, Interval
from perfbisect.report.hunt_report import SearchDecision
from perfbisect.report.page import charts
from perfbisect.report.page import flame_graph as flame
from perfbisect.report.page.flame_graph import colour_classes, drawn_frames, flame_graph, merged_stacks
from perfbisect.report.page.hunt import LONGEST, functions_pattern, is_about_function, parsed_diff
from perfbisect.report.page.svg import (
    Scale,
    element,
    escaped_value,
    interval_drawing,
    linear_scale,
    log_ratio_scale,
    tick_label,
)


def test_svg_text_and_attributes_are_escaped() -> None:
    drawing = element("text", "<b>&\"'", x='"><script>', class_="a")
    assert isinstance(drawing, Markup)
    assert "<script>" not in drawing and "<b>" not in drawing
    assert drawing.startswith('<text x="') and drawing.endswith("</text>")
    assert element("g", element("title", "a & b")) == "<g><title>a &amp; b</title></g>", "not escaped twice"
    assert element("line", x1=1.0, class_=None) == '<line x1="1"></line>', "no attribute that is None"
    assert escaped_value("a\u202eb\x1b[2J") == "a\\u202eb\\x1b[2J"


def test_axis_ticks_are_round_numbers_inside_the_scale() -> None:
    for scale in (Scale(0.7, 1.02, True), Scale(0.001, 900.0, True), Scale(0.0, 37.5), Scale(9_990, 10_010)):
        ticks = scale.ticks(5)
        assert 2 <= len(ticks) <= 12 and ticks == sorted(ticks)
        assert all(scale.low <= tick <= scale.high * (1 + 1e-9) for tick in ticks)
        assert all(float(f"{tick:.6g}") == pytest.approx(tick) for tick in ticks)


def test_scale_clips_outside_values_and_widens_for_equal_values() -> None:
    scale = Scale(0.5, 2.0, logarithmic=True)
    assert (scale(1.0), scale(0.0), scale(math.inf)) == (pytest.approx(0.5), 0.0, 1.0)
    alike = linear_scale([5.0, 5.0])
    assert alike.low < 5.0 < alike.high and 0 < alike(5.0) < 1
    ratios = log_ratio_scale([Interval(0.7, 0.72, 0.75), Interval(1.01, 1.05, 1.2)])
    assert (ratios.low < 0.7, ratios.high > 1.2) == (True, True)
    assert log_ratio_scale([]).low < 1 < log_ratio_scale([]).high
    assert log_ratio_scale([Interval(1e-300, 1e-200, 1e300)]).high < 100
    assert [tick_label(value) for value in (1.05, 20_000.0, 0.5, 3e9, 0.0)] == ["1.05", "20,000", "0.5", "3e+09", "0"]


def test_interval_is_drawn_with_a_dot_unless_it_is_a_bound() -> None:
    drawing = interval_drawing(Interval(0.5, 0.6, 0.7), log_ratio_scale([Interval(0.5, 0.6, 0.7)]), "bad")
    assert 'aria-label="0.600 (0.500–0.700)"' in drawing and '<g class="bad">' in drawing
    [start] = re.findall(r'<line x1="([\d.]+)%" x2="[\d.]+%" y1="11" y2="11" class="interval">', drawing)
    [dot] = re.findall(r'<circle cx="([\d.]+)%"', drawing)
    assert 0 < float(start) < float(dot) < 100
    found = (Interval(0.0, 0.2, 0.2), Interval(4.0, 5.0, float("inf")), None, UNKNOWN)
    drawings = [interval_drawing(each, log_ratio_scale([Interval(0.2, 1.0, 5.0)])) for each in found]
    assert ["<circle" in drawing for drawing in drawings] == [False, False, False, True]


def test_credible_range_contains_most_of_the_probability() -> None:
    culprit = np.array([0.0, 0.01, 0.5, 0.2, 0.26, 0.02, 0.01])
    assert charts.credible_range(culprit) == (2, 4)
    assert charts.credible_range(np.array([0.0, 1.0])) == (1, 1)


def test_search_drawing_has_a_bar_for_each_probable_candidate() -> None:
    culprit = np.zeros(11)
    culprit[[4, 8]] = 0.03, 0.97
    tested = {8: (sample.COMMITS[8], "culprit"), 4: (sample.COMMITS[4], "skipped")}
    drawing = charts.search_drawing(tested, [SearchDecision(np.full(11, 1 / 11), (0, 10)), SearchDecision(culprit, ())])
    assert drawing.count("<rect") == drawing.count('class="span"') == 2
    assert "Check the key order of a page after each update: 97 %" in drawing and "×" in drawing


def test_search_drawing_of_a_long_range_has_a_bounded_size() -> None:
    culprit = np.full(20_000, 1 / 20_000)
    drawing = charts.search_drawing({}, [SearchDecision(culprit, (5,))] * 500)
    assert drawing.count("<rect") == charts.WIDEST
    assert drawing.count('class="span"') == charts.STEPS
    assert len(drawing) < 100_000


def test_runs_are_drawn_in_time_order_and_joined_within_a_round() -> None:
    runs = [sample.run(number, 100.0 - number) for number in range(4)]
    timed = charts.run_drawings([("parent", runs[:2]), ("culprit", runs[2:])], lambda run: run.qps)
    assert [run.side for run in timed] == ["culprit", "culprit", "parent", "parent"]
    assert timed[0].values == runs[3].samples
    short = replace(runs[0], samples=(3.0,))
    timed = charts.run_drawings([("parent", [short]), ("culprit", [runs[1]])], lambda run: run.qps)
    assert [run.values for run in timed] == [(20_000.0,)] * 2
    drawing = charts.runs_drawing(timed, "QPS")
    assert drawing.count("<circle") == 2 and "<polyline" not in drawing
    rounds = [
        charts.RunDrawing(side, (1.0,), name) for side, name in zip("pcpcp", ["a", "a", "b", "", ""], strict=True)
    ]
    assert charts.runs_drawing(rounds, "QPS").count('class="interval"') == 1


def test_samples_of_long_runs_are_averaged() -> None:
    found = charts.averaged_samples(tuple(float(number) for number in range(1000)))
    assert len(found) == charts.POINTS
    assert sum(found) / len(found) == pytest.approx(499.5)
    assert list(found) == sorted(found)


def test_lines_of_runs_stay_inside_the_drawing() -> None:
    run = charts.RunDrawing("parent", (10.0, 20.0, 15.0))
    drawing = charts.runs_drawing([run, replace(run, side="culprit")], "QPS")
    points = [pair.split(",") for line in re.findall(r'points="([^"]*)"', drawing) for pair in line.split()]
    assert len(points) == 6
    assert all(0 <= float(x) <= 100 and 0 <= float(y) <= charts.HEIGHT for x, y in points)


def test_diff_is_parsed_into_files_hunks_and_lines() -> None:
    source, picture = parsed_diff(Path(__file__).with_name("changes.diff").read_text())
    assert (source.path, source.line_count("add"), source.line_count("del")) == ("src/a b.c", 3, 2)
    assert source.hunks[0].scope == "static void work(int x)"
    found = [
        [(line.kind, line.old_number, line.new_number, line.text) for line in hunk.lines[:3]] for hunk in source.hunks
    ]
    assert found[0] == [("same", 3, 3, "same"), ("del", 4, 0, "old"), ("add", 0, 4, "new")]
    assert [line[:3] for line in found[1]] == [("del", 40, 0), ("add", 0, 41)]
    last = source.hunks[0].lines[-1]
    assert (last.kind, last.old_number, last.new_number) == ("same", 5, 6), "each side counts its own lines"
    assert (picture.note, picture.hunks) == ("binary", [])


def test_diff_parser_reads_odd_lines() -> None:
    """Lines that look like headers stay lines, long lines are cut, and carriage returns are removed."""
    text = f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,4 @@\n--- a/y\n+++ b/y\n+{'z' * 5000}\n+dos\r\n"
    [file] = parsed_diff(text)
    assert [line.text for line in file.hunks[0].lines] == ["-- a/y", "++ b/y", f"{'z' * (LONGEST - 1)}…", "dos"]
    assert parsed_diff("") == []


def test_hunk_is_recognised_as_a_change_of_a_listed_function() -> None:
    [[hunk]] = [file.hunks for file in parsed_diff(Path(__file__).with_name("hunk.diff").read_text())]
    there = (["Tree::fill"], ["none", "ns::more"], ["insert", "old"])
    for functions in (*there, ["ignored", "ore", "mor", "x"], ["[libz.so.1]"], []):
        word = functions_pattern(functions)
        assert (word is not None and bool(is_about_function(hunk, word))) is (functions in there), functions


def boxes(drawing: str) -> list[dict[str, str]]:
    """The attributes and the title of each frame of a flame graph."""
    found = re.findall(r'<svg class="f [^"]*"([^>]*)><title>([^<]*)</title>', drawing.replace("&amp;", "&"))
    return [{"title": title, **dict(re.findall(r'([\w-]+)="([^"]*)"', rest))} for rest, title in found]


def test_profiles_of_both_builds_are_merged_into_one_call_tree() -> None:
    """A frame that only the parent has keeps its width."""
    root = merged_stacks({"main;a": 3.0, "main;b;d": 1.0}, {"main;a": 4.0, "main;a;c": 2.0})
    a, b = root.callees["main"].callees["a"], root.callees["main"].callees["b"]
    assert (root.parent_cost, root.culprit_cost, root.drawn_cost) == (4.0, 6.0, 7.0)
    assert (a.own_parent_cost, a.own_culprit_cost, a.culprit_cost, a.callees["c"].own_increase) == (3.0, 4.0, 6.0, 2.0)
    assert (b.culprit_cost, b.drawn_cost) == (0, 1.0)
    assert "gone" in colour_classes(b, 1.0)


def test_start_functions_are_removed_so_that_a_program_is_one_tree() -> None:
    starts = ("_start (x);__libc_start_main@@GLIBC_2.34 (libc.so.6);", "__libc_start_call_main (libc.so.6);", "")
    root = merged_stacks({f"x;{start}main (x);start_thread_pool (x)": 1.0 for start in starts}, {"x;_start": 2.0})
    assert list(root.callees["x"].callees) == ["main (x)"]
    assert list(root.callees["x"].callees["main (x)"].callees) == ["start_thread_pool (x)"]
    assert (root.parent_cost, root.callees["x"].own_culprit_cost) == (3.0, 2.0)


def test_rounding_difference_of_a_sum_is_no_change() -> None:
    """One frame has stacks with several start functions. The order in which their costs are added differs."""
    stacks = {"x;_start;main": 0.1, "x;main": 0.2, "x;start_thread;main": 0.3}
    main = merged_stacks(stacks, dict(zip(stacks, (0.3, 0.2, 0.1), strict=True))).callees["x"].callees["main"]
    assert main.own_parent_cost != main.own_culprit_cost
    assert flame.tooltip_text(main, "µs") == "main: 0.600 → 0.600 µs an operation"


def test_own_cost_differences_of_frames_sum_to_the_total_difference() -> None:
    random = Random(4)
    stacks = [";".join(random.choices("abcd", k=random.randint(1, 6))) for _ in range(80)]
    before, after = ({stack: random.random() for stack in stacks if random.random() < 0.7} for _ in range(2))
    frames = [frame for _, frame in flame.frames_depth_first(merged_stacks(before, after))]
    assert sum(frame.own_increase for frame in frames) == pytest.approx(sum(after.values()) - sum(before.values()))
    assert all(frame.drawn_cost >= sum(each.drawn_cost for each in frame.callees.values()) - 1e-9 for frame in frames)


def test_frames_lie_inside_their_callers_and_state_their_change() -> None:
    drawing = boxes(flame_graph({"m;a": 1.0, "m;old": 2.0, "m": 1.0}, {"m": 1.5, "m;a": 2.0, "m;a;new": 1.0}, "µs"))
    assert len(drawing) == 5
    above: list[tuple[float, float]] = []
    for box in drawing:
        left, right = float(box["x"].rstrip("%")), float(box["x"].rstrip("%")) + float(box["width"].rstrip("%"))
        depth = int(box["data-d"])
        assert all(start - 0.02 <= left and right <= end + 0.02 for start, end in above[:depth])
        above[depth:] = [(left, right)]
    titles = {box["title"].split(":")[0]: box["title"] for box in drawing}
    assert "gone from the culprit; parent 2.00 µs" in titles["old"]
    assert "not in the parent; culprit 1.00 µs" in titles["new"]
    assert "own +0.500 µs" in titles["m"]


def test_flame_graph_of_a_large_profile_has_a_bounded_size() -> None:
    random = Random(1)
    stacks = {";".join(f"<{'x' * 200}{random.randrange(50)}>" for _ in range(30)): random.random() for _ in range(700)}
    deep = ";".join(f"f{number}" for number in range(5000))
    drawing = flame_graph(stacks, stacks | {deep: 1e-9}, "µs")
    assert len(drawing) < 700_000
    assert len(boxes(drawing)) <= flame.FRAMES


def test_flame_graph_leaves_out_small_frames() -> None:
    stacks = {f"m;f{number}": 1.0 for number in range(3000)} | {"m;large": 500.0}
    names = {frame.name for _, frame in drawn_frames(merged_stacks(stacks, stacks))}
    assert {"all", "m", "large"} <= names and len(names) <= flame.FRAMES + 3


def test_paired_runs_are_joined_and_their_ratio_is_drawn_below() -> None:
    drawing = charts.pairs_drawing([(100.0 * noise, 95.0 * noise) for noise in (1.0, 1.3, 0.7)], "QPS")
    assert [len(re.findall(f'<circle [^>]*class="{side}"', drawing)) for side in ("good", "bad")] == [3, 3]
    below = re.findall('<circle [^>]*cy="([^"]*)" r="4"></circle>', drawing)
    assert (len(below), len(set(below))) == (3, 1), "ratios have no colour, and no common noise"
    assert "×0.950" in drawing and ">1</text>" in drawing
    assert "<title>pair 2: 130, 124, ×0.950</title>" in drawing


def test_latest_of_many_pairs_are_drawn_and_labels_do_not_overlap() -> None:
    latest = [(100.0, 101.0), (100.0, 99.0), (100.0, 99.9)] * (charts.LATEST // 3)
    drawing = charts.pairs_drawing([(1.0, 1.0), *latest], "QPS")
    assert drawing.count("<title>") == charts.LATEST
    assert "×0.999</text>" in drawing and ">1</text>" not in drawing
