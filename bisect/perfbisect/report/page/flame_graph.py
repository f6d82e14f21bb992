"""A differential flame graph: the profiles of a culprit and its parent in one drawing, where both spend the cost of one operation.

Frames of both profiles are merged by their callers; the caller is above what it calls. The width of a frame is its cost
per operation in the culprit; one that only the parent had keeps the width it had there and is hatched. The colour is the
difference in the frame's own cost, without what it calls: that is where the change is, not everything that leads to it.

The drawing is complete without the page's script, which zooms, searches, and shows it with the parent's widths. For that
each frame carries its depth and its two widths; frames are in depth-first order, which is all that a layout needs.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from markupsafe import Markup, escape

from perfbisect.report.page.svg import Attribute, chart, element, joined, percent
from perfbisect.wording.quantities import figure, signed

# What a program or a thread begins with, before it comes to its own code; some stacks have it, and some lack a part of it.
BEGINNING = re.compile(r"(_*start|__libc_start_\w+|start_thread|(__)?clone3?)\b.*")
Stacks = Mapping[str, float]  # "outermost;…;innermost" → own cost per operation

ROW = 18.0
LEAST = 1e-3  # share of the whole below which a frame is not drawn
MOST = 1000  # frames that are drawn, the largest
LETTERS = 120_000  # of their names together, as they are written in the page
SHOWN, NAMED = 60, 160  # characters of a name in the drawing and in its description
SHADES = 4  # of each colour


@dataclass(slots=True)
class Frame:
    """A function as it was called from one chain of callers; costs are per operation."""

    name: str
    own_before: float = 0.0  # in the parent, without what it calls
    own_after: float = 0.0  # in the culprit
    before: float = 0.0  # with what it calls
    after: float = 0.0
    gone: float = 0.0  # of ``before``, what was spent in calls that the culprit does not make
    calls: dict[str, "Frame"] = field(default_factory=dict)

    @property
    def size(self) -> float:
        """The larger of its two costs."""
        return max(self.before, self.after)

    @property
    def width(self) -> float:
        """Its cost in the culprit, and in the parent of what below it is gone from the culprit."""
        return self.after + self.gone

    @property
    def own_change(self) -> float:
        """By how much its own cost grew; 0 where only the order of summands differs."""
        return 0.0 if math.isclose(self.own_before, self.own_after) else self.own_after - self.own_before


def merged(before: Stacks, after: Stacks) -> Frame:
    """Both profiles as one tree, whose root is everything."""
    root = Frame("all")
    for stack in {**before, **after}:
        parent, culprit = before.get(stack, 0.0), after.get(stack, 0.0)
        for frame in (frames := path(root, stack)):
            frame.before += parent
            frame.after += culprit
        frames[-1].own_before += parent
        frames[-1].own_after += culprit
    for stack, cost in before.items():
        frames = path(root, stack)
        if not frames[-1].after:
            for frame in frames:
                frame.gone += cost
    return root


def path(root: Frame, stack: str) -> list[Frame]:
    """The frames of a stack from the root on, without its beginning; those that are new are made."""
    frames, (program, *names) = [root], stack.split(";")
    for name in (program, *dropwhile(BEGINNING.fullmatch, names)):
        frames.append(frames[-1].calls.setdefault(name, Frame(name)))
    return frames


def pruned(root: Frame) -> list[tuple[int, Frame]]:
    """The frames that are drawn, with their depths, in depth-first order, those called by one frame by name."""
    sizes = sorted(((frame.size, len(escape(frame.name[:NAMED]))) for _, frame in walk(root)), reverse=True)
    letters, least = 0, LEAST * root.size
    for place, (size, length) in enumerate(sizes):
        letters += length
        if place >= MOST or letters > LETTERS:
            least = max(least, size * (1 + 1e-9))
            break
    return [*walk(root, least)]


def walk(root: Frame, least: float = 0.0) -> Iterator[tuple[int, Frame]]:
    """The frames of at least that size in depth-first order, with their depths. Without recursion: stacks can be deep."""
    waiting = [(0, root)]
    while waiting:
        depth, frame = waiting.pop()
        if not depth or frame.size >= least:
            yield depth, frame
            waiting += ((depth + 1, frame.calls[name]) for name in sorted(frame.calls, reverse=True))


def flame_graph(before: Stacks, after: Stacks, unit: str) -> Markup:
    """The drawing. ``unit`` is that of the costs, such as "µs". Neither profile is empty."""
    frames = pruned(merged(before, after))
    whole = frames[0][1].width
    largest = max(abs(frame.own_change) for _, frame in frames) or 1.0
    depth = max(depth for depth, _ in frames)
    begins, drawn = [0.0] * (depth + 2), []
    for level, frame in frames:
        left = begins[level]
        begins[level], begins[level + 1] = left + frame.width, left
        drawn.append(box(frame, level, left / whole, frame.width / whole, largest, unit))
    label = "Differential flame graph of culprit and parent"
    hatching = element("path", d="M0 0L6 6M-1 5L1 7M5 -1L7 1", class_="hatch")  # of frames that are gone
    pattern = element("pattern", hatching, id="gone", width=6.0, height=6.0, patternUnits="userSpaceOnUse")
    return chart((depth + 1) * ROW, label, pattern, joined(drawn), class_="flame")


def box(frame: Frame, depth: int, left: float, width: float, largest: float, unit: str) -> Markup:
    """One frame."""
    title = element("title", described(frame, unit))
    area = element("rect", width="100%", height=ROW - 1)
    name = element("text", cut(frame.name, SHOWN), x=3.0, y=13.0)
    tone = f"f {shade(frame, largest)}"
    spot: dict[str, Attribute] = {"x": percent(left), "y": depth * ROW, "width": percent(width), "height": ROW}
    data = {"data_d": str(depth), "data_w": f"{frame.width:.5g} {frame.before:.5g}"}
    return element("svg", title, area, name, class_=tone, **spot, **data)


def shade(frame: Frame, largest: float) -> str:
    """The class of its colour: "up" or "down" with a number from 1 to 4, "same"; and "new" or "gone"."""
    state = " gone" if not frame.after else " new" if not frame.before else ""
    share = frame.own_change / largest
    strength = min(SHADES, round(abs(share) ** 0.5 * SHADES))
    return f"{'same' if not strength else f'up{strength}' if share > 0 else f'down{strength}'}{state}"


def described(frame: Frame, unit: str) -> str:
    """What the tip of a frame says."""
    if not frame.after:
        numbers = f"gone from the culprit; parent {figure(frame.before)} {unit}"
    elif not frame.before:
        numbers = f"not in the parent; culprit {figure(frame.after)} {unit}"
    else:
        numbers = f"{figure(frame.before)} → {figure(frame.after)} {unit}"
    own = f"; own {signed(frame.own_change)} {unit}" if frame.own_change else ""
    return f"{cut(frame.name, NAMED)}: {numbers}{own} an operation"


def cut(name: str, length: int) -> str:
    """A long name with its middle left out: templates differ at the end."""
    head = length // 2
    return name if len(name) <= length else f"{name[:head]}…{name[head + 1 - length :]}"
