"""A differential flame graph: the profiles of a culprit and its parent in one drawing; costs are per operation.

Frames of both profiles are merged by their callers; a caller is above its callees. The width of a frame is its cost in the
culprit; a frame of the parent alone keeps its width there, and is hatched. The colour is the difference of the frame's own
cost, without its callees, so that it marks the change and not all callers of it.

The drawing is complete without the page's script, which zooms, searches, and shows the parent's widths. For the script each
frame has its depth and both widths as data; frames are in depth-first order, which suffices for a layout.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from markupsafe import Markup, escape

from perfbisect.report.page.svg import Attribute, chart, element, joined, percent
from perfbisect.wording.quantities import figure, signed

# Functions that start a program or a thread, before its own code; some stacks lack some of them.
BEGINNING = re.compile(r"(_*start|__libc_start_\w+|start_thread|(__)?clone3?)\b.*")
Stacks = Mapping[str, float]  # "outermost;…;innermost" → own cost per operation

ROW = 18.0  # height of a frame in pixels
LEAST = 1e-3  # share of the root's cost below which a frame is not drawn
FRAMES = 1000  # frames that are drawn: the largest
LETTERS = 120_000  # characters of all their names together, escaped
SHOWN, NAMED = 60, 160  # characters of a name in the drawing and in its description
SHADES = 4  # number of shades of each colour


@dataclass(slots=True)
class Frame:
    """A function with one chain of callers; costs are per operation."""

    name: str
    own_before: float = 0.0  # in the parent, without callees
    own_after: float = 0.0  # in the culprit, without callees
    before: float = 0.0  # in the parent, with callees
    after: float = 0.0  # in the culprit, with callees
    gone: float = 0.0  # the part of ``before`` in stacks that the culprit does not have
    calls: dict[str, "Frame"] = field(default_factory=dict)

    @property
    def size(self) -> float:
        """The larger of both costs."""
        return max(self.before, self.after)

    @property
    def width(self) -> float:
        """The cost in the culprit, plus the parent's cost of stacks that are gone from the culprit."""
        return self.after + self.gone

    @property
    def own_change(self) -> float:
        """The increase of its own cost; 0 for a mere difference of rounding."""
        return 0.0 if math.isclose(self.own_before, self.own_after) else self.own_after - self.own_before


def merged(of_parent: Stacks, of_culprit: Stacks) -> Frame:
    """Both profiles as one tree; the cost of its root is the total."""
    root = Frame("all")
    for stack in {**of_parent, **of_culprit}:
        parent, culprit = of_parent.get(stack, 0.0), of_culprit.get(stack, 0.0)
        for frame in (frames := path(root, stack)):
            frame.before += parent
            frame.after += culprit
        frames[-1].own_before += parent
        frames[-1].own_after += culprit
    for stack, cost in of_parent.items():
        frames = path(root, stack)
        if not frames[-1].after:
            for frame in frames:
                frame.gone += cost
    return root


def path(root: Frame, stack: str) -> list[Frame]:
    """The frames of a stack from the root on, without BEGINNING; creates missing frames."""
    frames, (program, *names) = [root], stack.split(";")
    for name in (program, *dropwhile(BEGINNING.fullmatch, names)):
        frames.append(frames[-1].calls.setdefault(name, Frame(name)))
    return frames


def pruned(root: Frame) -> list[tuple[int, Frame]]:
    """The frames to draw, with their depths, in depth-first order; callees of a frame are sorted by name."""
    sizes = sorted(((frame.size, len(escape(frame.name[:NAMED]))) for _, frame in walk(root)), reverse=True)
    letters, least = 0, LEAST * root.size
    for index, (size, length) in enumerate(sizes):
        letters += length
        if index >= FRAMES or letters > LETTERS:
            least = max(least, size * (1 + 1e-9))
            break
    return [*walk(root, least)]


def walk(root: Frame, least: float = 0.0) -> Iterator[tuple[int, Frame]]:
    """The frames of at least size ``least`` with their depths, in depth-first order. Without recursion: stacks can be deep."""
    waiting = [(0, root)]
    while waiting:
        depth, frame = waiting.pop()
        if not depth or frame.size >= least:
            yield depth, frame
            waiting += ((depth + 1, frame.calls[name]) for name in sorted(frame.calls, reverse=True))


def flame_graph(of_parent: Stacks, of_culprit: Stacks, unit: str) -> Markup:
    """The drawing of two profiles, which are not empty; ``unit`` is the unit of costs, such as "µs"."""
    frames = pruned(merged(of_parent, of_culprit))
    total = frames[0][1].width
    largest = max(abs(frame.own_change) for _, frame in frames) or 1.0
    depth = max(depth for depth, _ in frames)
    begins, drawn = [0.0] * (depth + 2), []
    for level, frame in frames:
        x = begins[level]
        begins[level], begins[level + 1] = x + frame.width, x
        drawn.append(box(frame, level, x / total, frame.width / total, largest, unit))
    label = "Differential flame graph of culprit and parent"
    hatching = element("path", d="M0 0L6 6M-1 5L1 7M5 -1L7 1", class_="hatch")  # of frames with the class gone
    pattern = element("pattern", hatching, id="gone", width=6.0, height=6.0, patternUnits="userSpaceOnUse")
    return chart((depth + 1) * ROW, label, pattern, joined(drawn), class_="flame")


def box(frame: Frame, depth: int, x: float, width: float, largest: float, unit: str) -> Markup:
    """The drawing of a frame; ``left`` and ``width`` are fractions of the width, ``largest`` is the largest own change."""
    title = element("title", described(frame, unit))
    area = element("rect", width="100%", height=ROW - 1)
    name = element("text", cut(frame.name, SHOWN), x=3.0, y=13.0)
    tone = f"f {shade(frame, largest)}"
    spot: dict[str, Attribute] = {"x": percent(x), "y": depth * ROW, "width": percent(width), "height": ROW}
    data = {"data_d": str(depth), "data_w": f"{frame.width:.5g} {frame.before:.5g}"}
    return element("svg", title, area, name, class_=tone, **spot, **data)


def shade(frame: Frame, largest: float) -> str:
    """The classes of a frame's colour: "up" or "down" with a number from 1 to 4, or "same"; also "new" or "gone"."""
    state = " gone" if not frame.after else " new" if not frame.before else ""
    share = frame.own_change / largest
    strength = min(SHADES, round(abs(share) ** 0.5 * SHADES))
    return f"{'same' if not strength else f'up{strength}' if share > 0 else f'down{strength}'}{state}"


def described(frame: Frame, unit: str) -> str:
    """The text of a frame's tooltip: its name and costs."""
    if not frame.after:
        numbers = f"gone from the culprit; parent {figure(frame.before)} {unit}"
    elif not frame.before:
        numbers = f"not in the parent; culprit {figure(frame.after)} {unit}"
    else:
        numbers = f"{figure(frame.before)} → {figure(frame.after)} {unit}"
    own_text = f"; own {signed(frame.own_change)} {unit}" if frame.own_change else ""
    return f"{cut(frame.name, NAMED)}: {numbers}{own_text} an operation"


def cut(name: str, length: int) -> str:
    """A name, shortened in its middle to ``length`` characters: instances of templates differ at the end."""
    head = length // 2
    return name if len(name) <= length else f"{name[:head]}…{name[head + 1 - length :]}"
