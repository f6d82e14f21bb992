"""How much of what commands print is kept: all bounds, and the reasons for them.

A command can print without end. What is beyond these bounds is never kept in memory or on a disk.
"""

HEAD = 8 << 20  # bytes of each stream of a job that are kept from its beginning: several times the log of a long build
TAIL = 2 << 20  # bytes that are kept from its end, where totals and the reasons of failures are
PRINTED = 64 << 20  # bytes of each stream of a short command: git lists the tree of half a million files in less
LINE = 64 << 10  # characters of a line that are parsed for progress and errors: those of linkers are the longest
ARGUMENT = (128 << 10) - 1  # bytes of one argument or variable of a program: the limit of Linux
