"""Profiles as folded stacks: how a frame is written, what names of functions mean, and how stacks are made from what perf prints. Pure.

A stack of ``ProfileFacts`` is "program;outermost;…;innermost". Its first part is the name of the program, or of its
thread. Each other part is a frame: "function (binary)", such as "row_search_mvcc (mysqld)" or "vfs_read ([kernel])".
Where a binary has no symbol for an address, the frame is its name in brackets, "[libz.so.1]": all such addresses are one
frame. Neither part contains a semicolon or the end of a line. ``RARE`` stands for all callers of a stack that has cost
too little to be kept whole.

Names of functions are those of a symbol table, demangled, or those of the source code.

Stacks are folded from the call chains that ``perf script`` prints. A host has added up equal chains
(``lab/measure/profiles.py``), so that what it prints is short. Each of its lines has a cost, the number of samples, the
name of the thread and the frames, innermost first, with tabs between them; a frame is "symbol (path)", as of perf, or
``RARE`` for callers that it left out. A line "lost N" tells how many samples the kernel has dropped.

Of instructions that are counted one by one, a host (``lab/measure/counting.py``) prints the same lines, and
"N calls CALLEE CALLER". All of an execution is counted; of two, what the longer one has beyond the shorter.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from perfbisect.core.domain.facts import ProfileFacts

SEPARATOR = ";"  # of the parts of a stack
COUNTED = "instructions"  # unit of the costs of counts
KERNEL, UNKNOWN = "[kernel]", "[unknown]"  # binaries that are no files
RARE = "[rare stacks]"
GENERATED = "jit"  # the binary of code that a program generates as it runs: "[jit]" where it has no names
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
    if match := _FRAME.fullmatch(text):
        return match["function"], match["binary"]
    if text in (KERNEL, UNKNOWN):
        return text, text
    return text, text[1:-1] if text.startswith("[") and text.endswith("]") else ""


def frames(stack: str) -> tuple[str, ...]:
    """The frames of a stack, outermost first, without the program."""
    return tuple(stack.split(SEPARATOR)[1:])


def source_name(function: str) -> str:
    """The function of the source code: without what the compiler appends to a part of it or a form of it, ".cold"."""
    return _CLONE.sub("", function)


OPERATOR = re.compile(
    r"\boperator(?=\W)\s*(\(\)|\[\]|[-+*/%^&|~!=<>,]+|\"\"\s*\w+|(?<=\s)(?:(?:new|delete)(?:\[\])?|[\w:]+))"
)
LAMBDA = re.compile(r"::(?:\{lambda|\{\{closure|'lambda|\$_\d|\{unnamed).*")
HASH = re.compile(r"::h[0-9a-f]{16}$")  # of Rust's symbols
VERSION = re.compile(r"(?<=\w)@.*")  # "memcpy@plt", "memcpy@@GLIBC_2.14"
QUALIFIERS = re.compile(r"(?:\s+(?:const|volatile|noexcept)|\s*&{1,2})+$")
LAST = re.compile(r"(?:(?P<scope>[\w~$]+)(?:::|\.))?(?P<own>[\w~$]+)\s*$")
METHOD = re.compile(r"\(\*?(\w+)\)\.")  # of Go: "(*Tree)."
# What the C library calls its own forms of a function, such as those for some processors.
LIBRARY = re.compile(r"__(\w+?)_(?:avx|sse|ssse|evex|erms|asimd|neon|sve|zva)\w*|(?:__GI_)_*(\w+)")
LONGEST = 80  # characters in a sentence
OPENING, CLOSING = "(<[{", ")>]}"


def split(function: str) -> tuple[str, str]:
    """The innermost scope (a class or a namespace) and the own name of a function; "" where there is none.

    What a lambda does belongs to the function that contains it.

    >>> split("void store::Page<int>::insert(std::string const&) const [clone .cold]")
    ('Page', 'insert')
    """
    text = HASH.sub("", LAMBDA.sub("", VERSION.sub("", source_name(function))))
    if found := OPERATOR.search(text):
        scope = LAST.search(flat(text[: found.start()]).removesuffix("::"))
        return scope["own"] if scope else "", f"operator{found[1].replace(' ', '')}"
    last = LAST.search(QUALIFIERS.sub("", flat(text)))
    return (last["scope"] or "", last["own"]) if last else ("", "")


def flat(text: str) -> str:
    """The text without what is in brackets of any kind: arguments, those of templates, and their like."""
    depth, kept = 0, []
    for place, letter in enumerate(text):
        if letter in OPENING:
            depth += 1
        elif letter in CLOSING and not (letter == ">" and text[place - 1 : place] == "-"):
            depth -= 1
        elif depth <= 0:
            kept.append(letter)
    return "".join(kept)


def same(one: str, other: str) -> bool:
    """Whether two names can mean one function: their own names are equal, and their scopes where both have one."""
    scope, own = split(one)
    other_scope, other_own = split(other)
    return bool(own) and own == other_own and (scope == other_scope or not (scope and other_scope))


def short(function: str) -> str:
    """A name as people say it: with its innermost scope, without arguments and those of templates, and at most 80 characters.

    >>> short("void store::Page<int>::insert(std::string const&) const")
    'Page::insert'
    >>> short("<alloc::btree::RangeIter<K,V> as core::iter::Iterator>::next")
    'RangeIter::next'
    """
    text = source_name(function)
    if found := LIBRARY.fullmatch(text):
        return found[1] or found[2]
    plain = METHOD.sub(r"\1.", text)
    if text.startswith("<") and ">::" in text:  # of Rust: the type before the trait
        depth = list(
            accumulate((letter == "<") - (letter == ">" and before != "-") for before, letter in pairwise(f" {text}"))
        )
        end = depth.index(0) if 0 in depth else len(text) - 1
        plain = flat(text[1:end]).partition(" as ")[0] + text[end + 1 :]
    scope, own = split(plain)
    between = "." if f"{scope}.{own}" in plain else "::"
    name = f"{scope}{between * bool(scope)}{own}" if own else flat(text) or text
    name = re.sub(r"\boperator(?=\w)", "operator ", name) + "::{lambda}" * bool(own and LAMBDA.search(text))
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[1 - LONGEST // 2 :]}"


Key = tuple[str, str]  # function and binary
Sides = tuple[Sequence[ProfileFacts], Sequence[ProfileFacts]]  # profiles of the parent and of the culprit

# The end of a stack in the scheduler of the kernel to which no function of a program has gone by itself.
INTERRUPTED = re.compile(
    r";[^;]*(?:exit_to_user_mode|irqentry_exit|preempt_schedule|cond_resched|exit_to_usermode)[^;]* \(\[kernel\]\)(?:;_*schedule \(\[kernel\]\))*$"
)
# Binaries in which a thread waits for what called them.
SYSTEM = re.compile(r"\[|lib(?:c|pthread|stdc\+\+|c\+\+|gomp)[-.]|ld-linux")
KINDS = {  # of waits, by functions of the kernel
    kind: re.compile(rf"(?:{functions})[^;]* \(\[kernel\]\)")
    for kind, functions in (
        ("locks (futex)", "futex"),
        ("storage", "io_schedule|blk_mq|submit_bio|jbd2|fsync|fdatasync|wait_on_page|folio_wait"),
        ("others' answers (sockets, pipes)", "epoll|poll_schedule|sk_wait|unix_stream|tcp_|inet_|pipe_"),
    )
}


@lru_cache(maxsize=1 << 15)
def key_of(text: str) -> Key:
    """The function of the source code that a frame is of, and its binary."""
    function, binary = read_frame(text)
    return source_name(function), binary


def functions_in(profiles: Iterable[ProfileFacts], *, inlined: bool = False) -> frozenset[str]:
    """The names of all functions in the stacks of profiles, on CPU and off it, but for those of the binaries of `SYSTEM`.

    Those that exact counts have told apart, but are ``inlined``, only if these are wanted.
    """
    stacks = {(stack, bool(run.samples) or inlined) for run in profiles for stack in run.stacks}
    keys = {key_of(text) for stack, deep in stacks for text in frames(stack)[: None if deep else 1]}
    return frozenset(function for function, binary in keys if not SYSTEM.match(binary))


def comparable(both: Sides, *, off_cpu: bool = False, counted: bool = False) -> Sides:
    """The profiles on (or off) CPU of both sides, or their counts, in one unit; empty lists where one side has none."""
    low, high = ([run for run in runs if run.stacks and run.operations > 0 and run.off_cpu is off_cpu] for runs in both)
    units = [run.unit for run in low if (run.unit == COUNTED) is counted and run.unit in {other.unit for other in high}]
    return [run for run in low if run.unit in units[:1]], [run for run in high if run.unit in units[:1]]


def of_kinds(run: ProfileFacts) -> ProfileFacts:
    """A profile off CPU with what is waited for in place of functions; waits of other kinds are left out."""
    stacks: dict[str, float] = {}
    for stack, cost in run.stacks.items():
        kind = next((kind for kind, pattern in KINDS.items() if pattern.search(stack)), "")
        if kind and not INTERRUPTED.search(stack):
            stacks[f"waits;{kind} (all)"] = stacks.get(f"waits;{kind} (all)", 0.0) + cost
    return replace(run, stacks=stacks)


def called(run: ProfileFacts, factor: float = 1.0) -> ProfileFacts:
    """A profile whose stacks end at the last function that is neither of the kernel nor of a language's library.

    Without those of threads that were interrupted.
    """
    stacks: dict[str, float] = {}
    for stack, cost in run.stacks.items():
        if INTERRUPTED.search(stack):
            continue
        *above, last = stack.split(";")
        while above and SYSTEM.match(read_frame(last)[1]):
            *above, last = [*above]
        text = ";".join((*above, last))
        stacks[text] = stacks.get(text, 0.0) + factor * cost
    return replace(run, stacks=stacks, off_cpu=False)


MOST = 800  # stacks of one profile that keep their callers: those that cost most. All of them are kept in the history
NAME = 400  # characters of a function's name
FEW = 0.05  # share of what is missing up to which no note says so

# Functions in which threads begin.
ROOT = re.compile(
    r"_start|__libc_start.*|main|_dl_.*|.*start_thread.*|.*thread_start.*|_*clone3?|ret_from_fork.*|.*goexit.*|.*rt0_go.*|runtime\.m.*"
)
_SYMBOL = re.compile(r"(?P<symbol>.*?) \((?P<path>(?:/|\[|anon_inode|inlined|\S+\)$).*)\)")
_VERSION = re.compile(r"@@?(?!plt\b)[\w.]+$")  # of a symbol: "malloc@@GLIBC_2.2.5"
_NO_FILE = re.compile(r"/SYSV\w+|\[(?:heap|stack)\]|anon_inode.*")
# Memory without a file that is executed, and what a just-in-time compiler tells perf of it.
_COMPILED = re.compile(r".*/perf-\d+\.map|.*/jitted-\d+-\d+\.so|//anon|/dev/zero\b.*|/memfd:.*|\[anon(?::.*)?\]")
_IN_PROCESS = frozenset({"[vdso]", "[vsyscall]", UNKNOWN})  # names in brackets that are no part of the kernel


@dataclass(frozen=True, slots=True)
class Folded:
    """The stacks of one profile; costs in the unit of the event."""

    stacks: Mapping[str, float]  # as of ``ProfileFacts``
    samples: int
    lost: int
    alone: float  # share of the cost whose callers were not found


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
            alone += int(cost) / per_unit if ends_early(called, frames) else 0.0
    whole = sum(costs.values())
    return Folded(bounded(costs), samples, lost, alone / whole if whole else 0.0)


def ends_early(called: Sequence[str], chain: Sequence[str]) -> bool:
    """Whether callers of a stack were not found: it begins neither where threads do nor in or below code that has no names.

    ``chain`` has the frames of perf, innermost first.
    """
    function, binary = read_frame(called[0])
    known = binary != KERNEL and not (function.startswith("[") or readable(chain[-1]).startswith("["))
    return len(called) < 2 or (known and not ROOT.fullmatch(source_name(function)))


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
        frame_text = readable(text)
        if not (frames and frames[-1] == frame_text and frame_text.startswith("[")):
            frames.append(frame_text)
    while len(frames) > 1 and UNKNOWN in (frames[-1], frames[-2] if frames[-1] == f"[{GENERATED}]" else ""):
        frames.pop()
    return frames[::-1] or [UNKNOWN]


def readable(text: str) -> str:
    """A frame as it is kept, from one of perf."""
    if text == RARE:
        return RARE
    found = _SYMBOL.fullmatch(text)
    symbol, path = (found["symbol"], found["path"]) if found else (text, UNKNOWN)
    symbol = "" if symbol == UNKNOWN else _VERSION.sub("", symbol.strip())
    if len(symbol) > NAME:
        symbol = f"{symbol[: NAME // 2]}…{symbol[1 - NAME // 2 :]}"
    return frame(symbol, binary(path))


def binary(path: str) -> str:
    """The base name of a binary, from the path that perf prints: a file, a part of the kernel, or memory without a file."""
    path = path.removesuffix(" (deleted)")
    name = path.rpartition("/")[2]
    if _COMPILED.fullmatch(path):
        return "[jit]"
    if _NO_FILE.fullmatch(path):
        return UNKNOWN
    if (path.startswith("[") and path not in _IN_PROCESS) or name.endswith((".ko", ".ko.xz", ".ko.zst", ".ko.gz")):
        return KERNEL
    return name or UNKNOWN


def bounded(costs: Mapping[str, float]) -> dict[str, float]:
    """At most ``MOST`` stacks with their callers, and the functions of all others below ``RARE``. No cost is left out."""
    ranked = sorted(costs, key=lambda text: (-costs[text], text))
    stacks = {text: costs[text] for text in ranked[:MOST]}
    for text in ranked[MOST:]:
        thread, *frames = text.split(SEPARATOR)
        short = SEPARATOR.join([thread, RARE, frames[-1]] if len(frames) > 1 else [thread, *frames])
        stacks[short] = stacks.get(short, 0.0) + costs[text]
    return stacks


CALLS = 5000  # pairs of caller and callee that are kept, those with most calls
_NUMBER = re.compile(r"[0-9]{1,18}")


def counts_of(short: Iterable[str], long: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The stacks and the calls that were counted in a ``long`` execution and not in a ``short`` one, in what a host printed."""
    beyond = counted(long) - counted(short)
    calls: Counter[str] = Counter()
    for what, number in beyond.items():
        kind, *pair = what.split("\t")
        if kind == "calls" and len(pair) == 2:
            calls[SEPARATOR.join(readable(each) for each in reversed(pair))] += number
    stacks = fold(f"{number}\t{what}" for what, number in beyond.items()).stacks
    return dict(stacks), {pair: float(number) for pair, number in calls.most_common(CALLS)}


def counted(lines: Iterable[str]) -> Counter[str]:
    """What was counted → its number."""
    numbers: Counter[str] = Counter()
    for line in lines:
        number, _, what = line.partition("\t")
        if _NUMBER.fullmatch(number):
            numbers[what] += int(number)
    return numbers
