"""A differential flame graph: the profiles of a culprit and its parent in one drawing; costs are per operation.

Two frames of the two profiles are merged if they have the same function and the same chain of callers; a caller is
drawn above its callees. The width of a frame is its cost in the culprit. A frame that only the parent has is hatched,
and its width is its cost in the parent. The colour shows the difference of the frame's own cost, without the cost of
its callees, so that the changed function is coloured, and its callers are not.

The drawing is also complete if the page's script does not run; the script adds zooming, searching, and the widths of
the parent. Each frame has data for the script: its depth and both widths. The frames are in depth-first order, so that
the script can compute all positions from these data.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from markupsafe import Markup, escape

from perfbisect.report.page.svg import Attribute, chart, concatenated, element, percent
from perfbisect.wording.quantities import figure, signed

# Functions that run before the own code of a program or a thread; some stacks lack some of these functions.
BEGINNING = re.compile(r"(_*start|__libc_start_\w+|start_thread|(__)?clone3?)\b.*")
Stacks = Mapping[str, float]  # "outermost;…;innermost" → own cost per operation

ROW = 18.0  # height of a frame in pixels
LEAST = 1e-3  # share of the root's cost below which a frame is not drawn
FRAMES = 1000  # most frames that are drawn: the largest frames
LETTERS = 120_000  # most characters of the escaped names of all drawn frames
SHOWN, NAMED = 60, 160  # most characters of a function's name in the drawing, and in the description of the frame
SHADES = 4  # number of shades of each colour


@dataclass(slots=True)
class Frame:
    """A function with one chain of callers; costs are per operation."""

    name: str
    own_parent_cost: float = 0.0  # cost in the parent, without callees
    own_culprit_cost: float = 0.0  # cost in the culprit, without callees
    parent_cost: float = 0.0  # cost in the parent, with callees
    culprit_cost: float = 0.0  # cost in the culprit, with callees
    gone_cost: float = 0.0  # the part of ``parent_cost`` in stacks that the culprit does not have
    callees: dict[str, "Frame"] = field(default_factory=dict)

    @property
    def larger_cost(self) -> float:
        """The cost in the parent or the cost in the culprit, whichever is larger."""
        return max(self.parent_cost, self.culprit_cost)

    @property
    def drawn_cost(self) -> float:
        """The cost in the culprit, plus the parent's cost of stacks that are missing in the culprit."""
        return self.culprit_cost + self.gone_cost

    @property
    def own_increase(self) -> float:
        """The increase of the frame's own cost; 0 if the increase is only an error of rounding."""
        return (
            0.0
            if math.isclose(self.own_parent_cost, self.own_culprit_cost)
            else self.own_culprit_cost - self.own_parent_cost
        )


def merged_stacks(parent_stacks: Stacks, culprit_stacks: Stacks) -> Frame:
    """Both profiles as one tree; the cost of its root is the total."""
    root = Frame("all")
    for stack in {**parent_stacks, **culprit_stacks}:
        parent, culprit = parent_stacks.get(stack, 0.0), culprit_stacks.get(stack, 0.0)
        for frame in (frames := frames_of_stack(root, stack)):
            frame.parent_cost += parent
            frame.culprit_cost += culprit
        frames[-1].own_parent_cost += parent
        frames[-1].own_culprit_cost += culprit
    for stack, cost in parent_stacks.items():
        frames = frames_of_stack(root, stack)
        if not frames[-1].culprit_cost:
            for frame in frames:
                frame.gone_cost += cost
    return root


def frames_of_stack(root: Frame, stack: str) -> list[Frame]:
    """The frames of a stack from the root on, without the functions of BEGINNING; missing frames are created."""
    frames, (program, *names) = [root], stack.split(";")
    for name in (program, *dropwhile(BEGINNING.fullmatch, names)):
        frames.append(frames[-1].callees.setdefault(name, Frame(name)))
    return frames


def drawn_frames(root: Frame) -> list[tuple[int, Frame]]:
    """The frames to draw, with their depths, in depth-first order; callees of a frame are sorted by name."""
    sizes = sorted(
        ((frame.larger_cost, len(escape(frame.name[:NAMED]))) for _, frame in frames_depth_first(root)), reverse=True
    )
    letters, least = 0, LEAST * root.larger_cost
    for index, (size, length) in enumerate(sizes):
        letters += length
        if index >= FRAMES or letters > LETTERS:
            least = max(least, size * (1 + 1e-9))
            break
    return [*frames_depth_first(root, least)]


def frames_depth_first(root: Frame, min_cost: float = 0.0) -> Iterator[tuple[int, Frame]]:
    """The frames whose cost in the parent or in the culprit is at least ``min_cost``, with their depths, in depth-first
    order. The function is not recursive, because stacks can be deep.
    """
    waiting = [(0, root)]
    while waiting:
        depth, frame = waiting.pop()
        if not depth or frame.larger_cost >= min_cost:
            yield depth, frame
            waiting += ((depth + 1, frame.callees[name]) for name in sorted(frame.callees, reverse=True))


def flame_graph(parent_stacks: Stacks, culprit_stacks: Stacks, unit: str) -> Markup:
    """The drawing of two profiles, which are not empty; ``unit`` is the unit of costs, such as "µs"."""
    frames = drawn_frames(merged_stacks(parent_stacks, culprit_stacks))
    total = frames[0][1].drawn_cost
    largest = max(abs(frame.own_increase) for _, frame in frames) or 1.0
    depth = max(depth for depth, _ in frames)
    begins, drawn = [0.0] * (depth + 2), []
    for level, frame in frames:
        x = begins[level]
        begins[level], begins[level + 1] = x + frame.drawn_cost, x
        drawn.append(frame_box(frame, level, x / total, frame.drawn_cost / total, largest, unit))
    label = "Differential flame graph of culprit and parent"
    hatching = element("path", d="M0 0L6 6M-1 5L1 7M5 -1L7 1", class_="hatch")  # of frames with CSS class ``gone``
    pattern = element("pattern", hatching, id="gone", width=6.0, height=6.0, patternUnits="userSpaceOnUse")
    return chart((depth + 1) * ROW, label, pattern, concatenated(drawn), class_="flame")


def frame_box(frame: Frame, depth: int, x: float, width: float, largest_increase: float, unit: str) -> Markup:
    """The drawing of a frame; ``x`` and ``width`` are fractions of the width; ``largest_increase`` is the largest
    increase of all frames.
    """
    title = element("title", tooltip_text(frame, unit))
    area = element("rect", width="100%", height=ROW - 1)
    name = element("text", shortened_name(frame.name, SHOWN), x=3.0, y=13.0)
    tone = f"f {colour_classes(frame, largest_increase)}"
    spot: dict[str, Attribute] = {"x": percent(x), "y": depth * ROW, "width": percent(width), "height": ROW}
    data = {"data_d": str(depth), "data_w": f"{frame.drawn_cost:.5g} {frame.parent_cost:.5g}"}
    return element("svg", title, area, name, class_=tone, **spot, **data)


def colour_classes(frame: Frame, largest_increase: float) -> str:
    """The CSS classes of a frame's colour: "up" or "down" with a number from 1 to 4, or "same"; and "new" or "gone" if
    only one build has the frame.
    """
    state = " gone" if not frame.culprit_cost else " new" if not frame.parent_cost else ""
    share = frame.own_increase / largest_increase
    strength = min(SHADES, round(abs(share) ** 0.5 * SHADES))
    return f"{'same' if not strength else f'up{strength}' if share > 0 else f'down{strength}'}{state}"


def tooltip_text(frame: Frame, unit: str) -> str:
    """The text of a frame's tooltip: its name and costs."""
    if not frame.culprit_cost:
        numbers = f"gone from the culprit; parent {figure(frame.parent_cost)} {unit}"
    elif not frame.parent_cost:
        numbers = f"not in the parent; culprit {figure(frame.culprit_cost)} {unit}"
    else:
        numbers = f"{figure(frame.parent_cost)} → {figure(frame.culprit_cost)} {unit}"
    own_text = f"; own {signed(frame.own_increase)} {unit}" if frame.own_increase else ""
    return f"{shortened_name(frame.name, NAMED)}: {numbers}{own_text} an operation"


def shortened_name(name: str, length: int) -> str:
    """A name, shortened to ``length`` characters by removing its middle, because the names of template instances differ
    at the end.
    """
    head = length // 2
    return name if len(name) <= length else f"{name[:head]}…{name[head + 1 - length :]}"
