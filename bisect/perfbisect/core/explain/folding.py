"""Folded stacks from the call chains that ``perf script`` prints. Pure.

A host has added up equal chains (``lab/measure/sampling.py``), so that what it prints is short. Each of its lines has a
cost, the number of samples, the name of the thread and the frames, innermost first, with tabs between them; a frame is
"symbol (path)", as of perf, or ``RARE`` for callers that it left out. A line "lost N" tells how many samples the kernel
has dropped.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfbisect.core.domain.profiles import KERNEL, RARE, SEPARATOR, UNKNOWN, frame

MOST = 800  # stacks of one profile that keep their callers: those that cost most. All of them are kept in the history
NAME = 400  # characters of a function's name
FEW = 0.05  # share of what is missing up to which no note says so

_FRAME = re.compile(r"(?P<symbol>.*?) \((?P<path>(?:/|\[|anon_inode|inlined|\S+\)$).*)\)")
_VERSION = re.compile(r"@@?(?!plt\b)[\w.]+$")  # of a symbol: "malloc@@GLIBC_2.2.5"
_NO_FILE = re.compile(r"//anon|/dev/zero\b.*|/SYSV\w+|/memfd:.*|\[(?:heap|stack|anon|anon:.*)\]|anon_inode.*")
_COMPILED = re.compile(r"perf-\d+\.map|jitted-\d+-\d+\.so")  # what a just-in-time compiler tells perf
_IN_PROCESS = frozenset({"[vdso]", "[vsyscall]", UNKNOWN})  # names in brackets that are no part of the kernel


@dataclass(frozen=True, slots=True)
class Folded:
    """The stacks of one profile; costs in the unit of the event."""

    stacks: Mapping[str, float]  # as of ``ProfileFacts``
    samples: int
    lost: int
    alone: float  # share of the cost whose function has no caller


def fold(lines: Iterable[str], per_unit: float = 1.0) -> Folded:
    """The stacks in what a host prints; ``per_unit`` is what their costs are divided by. Other lines are left out."""
    costs: dict[str, float] = {}
    samples = lost = 0
    alone = 0.0
    for line in lines:
        cost, _, rest = line.partition("\t")
        number, _, chain = rest.partition("\t")
        if cost == "lost":
            lost += int(number) if number.isdecimal() else 0
        elif cost.isdecimal() and number.isdecimal():
            thread, *frames = chain.split("\t")
            called = stack(frames)
            text = SEPARATOR.join([program(thread), *called])
            costs[text] = costs.get(text, 0.0) + int(cost) / per_unit
            samples += int(number)
            alone += int(cost) / per_unit if len(called) < 2 else 0.0
    whole = sum(costs.values())
    return Folded(bounded(costs), samples, lost, alone / whole if whole else 0.0)


def program(thread: str) -> str:
    """The name of a program, from that of its thread."""
    return " ".join(thread.replace(SEPARATOR, ":").split()) or UNKNOWN


def stack(chain: Iterable[str]) -> list[str]:
    """The frames of a chain, outermost first.

    Addresses of one binary without symbols are one frame while they follow each other. Where nothing is known of the
    outermost ones, as of code that a just-in-time compiler made, the stack begins below them.
    """
    frames: list[str] = []
    for text in chain:
        made = readable(text)
        if not (frames and frames[-1] == made and made.startswith("[")):
            frames.append(made)
    while len(frames) > 1 and frames[-1] == UNKNOWN:
        frames.pop()
    return frames[::-1] or [UNKNOWN]


def readable(text: str) -> str:
    """A frame as it is kept, from one of perf."""
    if text == RARE:
        return RARE
    found = _FRAME.fullmatch(text)
    symbol, path = (found["symbol"], found["path"]) if found else (text, UNKNOWN)
    symbol = "" if symbol == UNKNOWN else _VERSION.sub("", symbol.strip())
    if len(symbol) > NAME:
        symbol = f"{symbol[: NAME // 2]}…{symbol[1 - NAME // 2 :]}"
    return frame(symbol, binary(path))


def binary(path: str) -> str:
    """The base name of a binary, from the path that perf prints: a file, a part of the kernel, or memory without a file."""
    path = path.removesuffix(" (deleted)")
    name = path.rpartition("/")[2]
    if _COMPILED.fullmatch(name):
        return "[jit]"
    if _NO_FILE.fullmatch(path):
        return UNKNOWN
    if (path.startswith("[") and path not in _IN_PROCESS) or name.endswith((".ko", ".ko.xz", ".ko.zst", ".ko.gz")):
        return KERNEL
    return name or UNKNOWN


def bounded(costs: Mapping[str, float]) -> dict[str, float]:
    """At most ``MOST`` stacks with their callers, and the functions of all others below ``RARE``. No cost is left out."""
    kept = sorted(costs, key=lambda text: (-costs[text], text))
    made = {text: costs[text] for text in kept[:MOST]}
    for text in kept[MOST:]:
        thread, *frames = text.split(SEPARATOR)
        short = SEPARATOR.join([thread, RARE, frames[-1]] if len(frames) > 1 else [thread, *frames])
        made[short] = made.get(short, 0.0) + costs[text]
    return made
