"""The frames of folded stacks: how a function and its binary are written in one, and read from it. Pure.

A stack of ``ProfileFacts`` is "program;outermost;…;innermost". Its first part is the name of the program, or of its
thread. Each other part is a frame: "function (binary)", such as "row_search_mvcc (mysqld)" or "vfs_read ([kernel])".
Where a binary has no symbol for an address, the frame is its name in brackets, "[libz.so.1]": all such addresses are one
frame. Neither part contains a semicolon or the end of a line. ``RARE`` stands for all callers of a stack that has cost
too little to be kept whole.
"""

import re

SEPARATOR = ";"  # of the parts of a stack
KERNEL, UNKNOWN = "[kernel]", "[unknown]"  # binaries that are no files
RARE = "[rare stacks]"
NO_CALLERS = frozenset({UNKNOWN, RARE})  # frames that call nothing: their functions are not known

_FRAME = re.compile(r"(?P<function>.+) \((?P<binary>[^()]+)\)")
_FORBIDDEN = re.compile(r"[;\r\n]")
# What compilers append to the name of a part or a special form of a function; demanglers write it as " [clone .cold]".
_CLONE = re.compile(
    r"(?: \[clone \.[\w.]+\])+$|(?<=\w)(?:\.(?:cold|part|isra|constprop|lto_priv|llvm|localalias|ipa_split|unlikely)(?:\.\d+)*)+$"
)


def frame(function: str, binary: str) -> str:
    """A frame of a stack. ``function`` is empty where it is unknown, ``binary`` is a base name; "" is unknown, too."""
    named = _FORBIDDEN.sub(":", binary).replace("(", "[").replace(")", "]") or UNKNOWN
    return f"{_FORBIDDEN.sub(':', function)} ({named})" if function else f"[{named.strip('[]')}]"


def read_frame(text: str) -> tuple[str, str]:
    """The function and the binary of a frame.

    Of "[libz.so.1]" these are "[libz.so.1]" and "libz.so.1"; of a program's name, they are the name and "".
    """
    if found := _FRAME.fullmatch(text):
        return found["function"], found["binary"]
    if text in (KERNEL, UNKNOWN):
        return text, text
    return text, text[1:-1] if text.startswith("[") and text.endswith("]") else ""


def frames(stack: str) -> tuple[str, ...]:
    """The frames of a stack, outermost first, without the program."""
    return tuple(stack.split(SEPARATOR)[1:])


def source_name(function: str) -> str:
    """The function of the source code: without what the compiler appends to a part of it or a form of it, ".cold"."""
    return _CLONE.sub("", function)
