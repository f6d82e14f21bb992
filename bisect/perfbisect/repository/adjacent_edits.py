"""Conflicts in which both sides changed lines that touch, but not the same lines.

git merges two changes of a file only if unchanged lines lie between them. A revert meets that often: later commits added
their functions right behind those of the reverted one. Where one side has only added lines before and behind the lines
that the other has replaced, only one result is possible: the replacement, with what was added around it.
"""

import re
from collections.abc import Sequence

MARKER = 64  # signs of a marker of a conflict, so many that no file has them


def settled(merged: bytes) -> bytes | None:
    """What `git merge-file --diff3 --marker-size=MARKER` wrote, without conflicts; None if another kind is among them."""
    signs = [re.escape(sign * MARKER) for sign in (b"<", b"|", b"=", b">")]
    ours, base, theirs, end = (rb"^" + sign + rb"(?: [^\n]*)?\n" for sign in signs)
    conflict = re.compile(ours + rb"(.*?)" + base + rb"(.*?)" + theirs + rb"(.*?)" + end, re.DOTALL | re.MULTILINE)
    parts, done = [], 0
    for found in conflict.finditer(merged):
        result = settle(*(part.splitlines(keepends=True) for part in found.groups()))
        if result is None:
            return None
        parts += [merged[done : found.start()], *result]
        done = found.end()
    return b"".join([*parts, merged[done:]])


def settle(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes] | None:
    """The lines of one conflict; None where both sides changed the same lines, or added some at the same place."""
    for one, other in ((ours, theirs), (theirs, ours)):
        size = len(base)
        places = [at for at in range(len(one) - size + 1) if size and list(one[at : at + size]) == list(base)]
        if len(places) == 1:
            return [*one[: places[0]], *other, *one[places[0] + size :]]
    return None
