import re
from random import Random

import pytest

from perfbisect.report.page import flame
from perfbisect.report.page.flame import flame_graph, merged, pruned, shade


def boxes(drawing: str) -> list[dict[str, str]]:
    """The attributes of each frame, with its title."""
    found = re.findall(r'<svg class="f ([^"]*)"([^>]*)><title>([^<]*)</title>', drawing.replace("&amp;", "&"))
    # attributes are in any order: class may come after others
    return [
        {"class": classes, "title": title, **dict(re.findall(r'([\w-]+)="([^"]*)"', rest))}
        for classes, rest, title in found
    ]


def test_both_profiles_are_merged_by_callers() -> None:
    root = merged({"main;a": 3.0, "main;b": 1.0}, {"main;a": 4.0, "main;a;c": 2.0})
    main = root.calls["main"]
    assert (root.before, root.after) == (4.0, 6.0)
    assert (main.calls["a"].own_before, main.calls["a"].own_after, main.calls["a"].after) == (3.0, 4.0, 6.0)
    assert main.calls["a"].calls["c"].own_change == 2.0
    assert main.calls["b"].after == 0


def test_what_vanished_keeps_the_width_it_had() -> None:
    root = merged({"main;a": 3.0, "main;b;c": 1.0}, {"main;a": 4.0})
    assert root.width == 5.0
    assert root.calls["main"].calls["b"].width == 1.0
    assert "gone" in shade(root.calls["main"].calls["b"], 1.0)


def test_differences_of_frames_own_costs_sum_to_the_difference_of_the_whole() -> None:
    random = Random(4)
    stacks = [";".join(random.choices("abcd", k=random.randint(1, 6))) for _ in range(80)]
    before, after = ({stack: random.random() for stack in stacks if random.random() < 0.7} for _ in range(2))
    root = merged(before, after)
    own = sum(frame.own_change for _, frame in flame.walk(root))
    assert own == pytest.approx(sum(after.values()) - sum(before.values()))
    for _, frame in flame.walk(root):
        below = sum(each.width for each in frame.calls.values())
        assert frame.width >= below - 1e-9


def test_frames_lie_inside_their_callers() -> None:
    drawing = boxes(flame_graph({"m;a": 1.0, "m;b": 2.0}, {"m;a": 2.0, "m;a;x": 1.0, "m;c": 1.0}, "µs"))
    assert len(drawing) == 6
    above: list[tuple[float, float]] = []
    for box in drawing:
        left, width = float(box["x"].rstrip("%")), float(box["width"].rstrip("%"))
        depth = int(box["data-d"])
        if depth:
            start, size = above[depth - 1]
            assert left >= start - 0.02
            assert left + width <= start + size + 0.02
        above[depth:] = [(left, width)]


def test_titles_say_what_happened_to_a_frame() -> None:
    drawing = flame_graph({"m;old": 2.0, "m": 1.0}, {"m": 1.5, "m;new": 1.0}, "µs")
    titles = {box["title"].split(":")[0]: box["title"] for box in boxes(drawing)}
    assert "gone from the culprit; parent 2.00 µs" in titles["old"]
    assert "not in the parent; culprit 1.00 µs" in titles["new"]
    assert "own +0.500 µs" in titles["m"]


def test_a_large_profile_is_drawn_in_a_bounded_size() -> None:
    random = Random(1)
    stacks = {";".join(f"<{'x' * 200}{random.randrange(50)}>" for _ in range(30)): random.random() for _ in range(2000)}
    drawing = flame_graph(stacks, stacks, "µs")
    assert len(drawing) < 700_000
    assert len(boxes(drawing)) <= flame.MOST


def test_small_frames_are_left_out_and_large_ones_stay() -> None:
    stacks = {f"m;f{number}": 1.0 for number in range(3000)} | {"m;large": 500.0}
    names = {frame.name for _, frame in pruned(merged(stacks, stacks))}
    assert {"all", "m", "large"} <= names
    assert len(names) <= flame.MOST + 3


def test_a_stack_may_be_very_deep() -> None:
    stack = ";".join(f"f{number}" for number in range(5000))
    assert flame_graph({stack: 1.0}, {stack: 2.0}, "µs")


def test_names_are_escaped() -> None:
    drawing = flame_graph({'a<script>alert(1)</script>"': 1.0}, {"b\u202e": 1.0}, "µs")
    assert "<script>" not in drawing
    assert "\u202e" not in drawing
