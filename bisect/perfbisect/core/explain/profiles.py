"""Represents profiles as folded stacks: defines the format of a frame, reads function names, and converts perf's output
to stacks.

A stack of ``ProfileFacts`` is the text "program;outermost function;…;innermost function". The first part of a stack is
the name of the program, or of its thread. Each further part of a stack is a frame of the form "function (binary)", such
as "row_search_mvcc (mysqld)" or "vfs_read ([kernel])". If a binary has no symbol for an address, the frame is the name
of the binary in brackets, such as "[libz.so.1]". So all addresses without symbols in this binary have the same frame.
No part of a stack contains a semicolon or a line end. If the cost of a stack is low, ``RARE`` replaces all callers in
the stack, to save space.

A function is named by its demangled name from the symbol table, or by its name in the source code.

Folded stacks are made from the call chains that ``perf script`` prints. The host adds up the costs of equal call chains
(``lab/measure/profiles.py``), so that its output is short. Each line of this output has a cost, the number of samples,
the name of the thread and the frames, innermost first, separated by tabs. In this output, a frame is "symbol (path)",
as perf prints frames, or ``RARE`` in place of all callers. A line "lost N" says that the kernel dropped N samples.

For exact counts of instructions, the host (``lab/measure/counting.py``) prints lines of the same form, and lines "N
calls CALLEE CALLER". The workload is executed twice, and the counts of the short execution are subtracted from the
counts of the long execution.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from perfbisect.core.domain.facts import ProfileFacts

SEPARATOR = ";"  # between the parts of a stack
COUNTED = "instructions"  # the unit of exact counts
KERNEL, UNKNOWN = "[kernel]", "[unknown]"  # binaries that are not files
RARE = "[rare stacks]"
GENERATED = "jit"  # the binary of code that a program generates at run time: "[jit]" for code without names
NO_CALLERS = frozenset({UNKNOWN, RARE})  # frames of unknown functions

_FRAME = re.compile(r"(?P<function>.+) \((?P<binary>[^()]+)\)")
_FORBIDDEN = re.compile(r"[;\r\n]")
# Suffixes that compilers append to the names of parts and clones of a function; demanglers write " [clone .cold]".
_CLONE = re.compile(
    r"(?: \[clone \.[\w.]+\])+$|(?<=\w)(?:\.(?:cold|part|isra|constprop|lto_priv|llvm|localalias|ipa_split|unlikely)(?:\.\d+)*)+$"
)


def frame(function: str, binary: str) -> str:
    """A frame of a stack. ``binary`` is a base name. ``function`` or ``binary`` is empty if it is unknown."""
    binary_text = _FORBIDDEN.sub(":", binary).replace("(", "[").replace(")", "]") or UNKNOWN
    return f"{_FORBIDDEN.sub(':', function)} ({binary_text})" if function else f"[{binary_text.strip('[]')}]"


def read_frame(text: str) -> tuple[str, str]:
    """The function and the binary of a frame.

    A frame without a symbol, such as "[libz.so.1]", has the function "[libz.so.1]" and the binary "libz.so.1". If
    ``text`` is the name of a program (the first part of a stack), the binary is "".
    """
    if match := _FRAME.fullmatch(text):
        return match["function"], match["binary"]
    if text in (KERNEL, UNKNOWN):
        return text, text
    return text, text[1:-1] if text.startswith("[") and text.endswith("]") else ""


def stack_frames(stack: str) -> tuple[str, ...]:
    """The frames of a stack, outermost first, without the program's name."""
    return tuple(stack.split(SEPARATOR)[1:])


def source_name(function: str) -> str:
    """The function's name in the source code, without suffixes that a compiler adds, such as ".cold"."""
    return _CLONE.sub("", function)


OPERATOR = re.compile(
    r"\boperator(?=\W)\s*(\(\)|\[\]|[-+*/%^&|~!=<>,]+|\"\"\s*\w+|(?<=\s)(?:(?:new|delete)(?:\[\])?|[\w:]+))"
)
LAMBDA = re.compile(r"::(?:\{lambda|\{\{closure|'lambda|\$_\d|\{unnamed).*")
HASH = re.compile(r"::h[0-9a-f]{16}$")  # of Rust's symbols
VERSION = re.compile(r"(?<=\w)@.*")  # "memcpy@plt", "memcpy@@GLIBC_2.14"
QUALIFIERS = re.compile(r"(?:\s+(?:const|volatile|noexcept)|\s*&{1,2})+$")
LAST_NAME = re.compile(r"(?:(?P<scope>[\w~$]+)(?:::|\.))?(?P<own>[\w~$]+)\s*$")
METHOD = re.compile(r"\(\*?(\w+)\)\.")  # the receiver in the name of a method in Go: "(*Tree)."
# Names of a C library function's versions for certain processors, such as __memcpy_avx_unaligned.
LIBRARY_VARIANT = re.compile(r"__(\w+?)_(?:avx|sse|ssse|evex|erms|asimd|neon|sve|zva)\w*|(?:__GI_)_*(\w+)")
MAX_SHORT_NAME = 80  # most characters of a name in a sentence
OPENING, CLOSING = "(<[{", ")>]}"


def scope_and_name(function: str) -> tuple[str, str]:
    """The innermost scope (a class or a namespace, or "") and the unqualified name of a function.

    A lambda is treated as a part of the function that contains the lambda.

    >>> scope_and_name("void store::Page<int>::insert(std::string const&) const [clone .cold]")
    ('Page', 'insert')
    """
    text = HASH.sub("", LAMBDA.sub("", VERSION.sub("", source_name(function))))
    if operator := OPERATOR.search(text):
        scope = LAST_NAME.search(without_brackets(text[: operator.start()]).removesuffix("::"))
        return scope["own"] if scope else "", f"operator{operator[1].replace(' ', '')}"
    last = LAST_NAME.search(QUALIFIERS.sub("", without_brackets(text)))
    return (last["scope"] or "", last["own"]) if last else ("", "")


def without_brackets(text: str) -> str:
    """A function name without brackets of any kind and without the text in the brackets, such as arguments and template
    arguments."""
    depth, outside_brackets = 0, []
    for index, character in enumerate(text):
        if character in OPENING:
            depth += 1
        elif character in CLOSING and not (character == ">" and text[index - 1 : index] == "-"):
            depth -= 1
        elif depth <= 0:
            outside_brackets.append(character)
    return "".join(outside_brackets)


def may_be_same(first: str, second: str) -> bool:
    """Whether two names may name the same function: the unqualified names are equal, and the scopes are equal or one of
    the names has no scope.
    """
    scope, name = scope_and_name(first)
    second_scope, second_name = scope_and_name(second)
    return bool(name) and name == second_name and (scope == second_scope or not (scope and second_scope))


def short_name(function: str) -> str:
    """A function's name with its innermost scope, without arguments and template arguments, cut to 80 characters.

    >>> short_name("void store::Page<int>::insert(std::string const&) const")
    'Page::insert'
    >>> short_name("<alloc::btree::RangeIter<K,V> as core::iter::Iterator>::next")
    'RangeIter::next'
    """
    text = source_name(function)
    if library_function := LIBRARY_VARIANT.fullmatch(text):
        return library_function[1] or library_function[2]
    plain = METHOD.sub(r"\1.", text)
    if text.startswith("<") and ">::" in text:  # <Type as Trait> of Rust
        steps = ((sign == "<") - (sign == ">" and previous != "-") for previous, sign in pairwise(f" {text}"))
        depth = list(accumulate(steps))
        end = depth.index(0) if 0 in depth else len(text) - 1
        plain = without_brackets(text[1:end]).partition(" as ")[0] + text[end + 1 :]
    scope, own_name = scope_and_name(plain)
    between = "." if f"{scope}.{own_name}" in plain else "::"
    name = f"{scope}{between * bool(scope)}{own_name}" if own_name else without_brackets(text) or text
    name = re.sub(r"\boperator(?=\w)", "operator ", name) + "::{lambda}" * bool(own_name and LAMBDA.search(text))
    return name if len(name) <= MAX_SHORT_NAME else f"{name[: MAX_SHORT_NAME // 2]}…{name[1 - MAX_SHORT_NAME // 2 :]}"


FunctionKey = tuple[str, str]  # function and binary
ProfilesOfBoth = tuple[Sequence[ProfileFacts], Sequence[ProfileFacts]]  # profiles of the parent and of the culprit

# The end of a stack in the scheduler of the kernel if the thread was interrupted: no function of the program called the
# scheduler.
INTERRUPTED_STACK = re.compile(
    r";[^;]*(?:exit_to_user_mode|irqentry_exit|preempt_schedule|cond_resched|exit_to_usermode)[^;]* \(\[kernel\]\)(?:;_*schedule \(\[kernel\]\))*$"
)
# Binaries of the system. If a thread waits in a function of these binaries, the wait counts for the function's caller.
SYSTEM_BINARY = re.compile(r"\[|lib(?:c|pthread|stdc\+\+|c\+\+|gomp)[-.]|ld-linux")
WAIT_KINDS = {  # kind of wait → pattern of kernel functions
    kind: re.compile(rf"(?:{functions})[^;]* \(\[kernel\]\)")
    for kind, functions in (
        ("locks (futex)", "futex"),
        ("storage", "io_schedule|blk_mq|submit_bio|jbd2|fsync|fdatasync|wait_on_page|folio_wait"),
        ("others' answers (sockets, pipes)", "epoll|poll_schedule|sk_wait|unix_stream|tcp_|inet_|pipe_"),
    )
}


@lru_cache(maxsize=1 << 15)
def function_key(text: str) -> FunctionKey:
    """The name that the function of a frame has in the source code, and the binary of the frame."""
    function, binary = read_frame(text)
    return source_name(function), binary


def non_system_functions(profiles: Iterable[ProfileFacts], *, with_inlined: bool = False) -> frozenset[str]:
    """The names of all functions in on-CPU and off-CPU profiles, except functions of the kernel and of libc
    (``SYSTEM_BINARY``).

    If ``with_inlined`` is true, the result includes functions that are inlined into other functions. Only profiles of
    exact counts contain inlined functions.
    """
    stacks = {(stack, None if run.samples or with_inlined else 1) for run in profiles for stack in run.stacks}
    keys = {function_key(text) for stack, limit in stacks for text in stack_frames(stack)[:limit]}
    return frozenset(function for function, binary in keys if not SYSTEM_BINARY.match(binary))


def comparable_profiles(profiles: ProfilesOfBoth, *, off_cpu: bool = False, counted: bool = False) -> ProfilesOfBoth:
    """The profiles of both builds in the same unit: on-CPU profiles, off-CPU profiles if ``off_cpu`` is true, or
    instruction counts if ``counted`` is true. The lists are empty if one build has no such profiles."""
    parent, culprit = (
        [run for run in runs if run.stacks and run.operations > 0 and run.off_cpu is off_cpu] for runs in profiles
    )
    culprit_units = {run.unit for run in culprit}
    units = [run.unit for run in parent if (run.unit == COUNTED) is counted and run.unit in culprit_units]
    return [run for run in parent if run.unit in units[:1]], [run for run in culprit if run.unit in units[:1]]


def waits_by_kind(profile: ProfileFacts) -> ProfileFacts:
    """An off-CPU profile in which each stack is replaced by its kind of wait (storage, a lock, …). Stacks whose kind of
    wait is unknown are left out."""
    stacks: dict[str, float] = {}
    for stack, cost in profile.stacks.items():
        kind = next((kind for kind, pattern in WAIT_KINDS.items() if pattern.search(stack)), "")
        if kind and not INTERRUPTED_STACK.search(stack):
            stacks[f"waits;{kind} (all)"] = stacks.get(f"waits;{kind} (all)", 0.0) + cost
    return replace(profile, stacks=stacks)


def without_system_leaves(profile: ProfileFacts, factor: float = 1.0) -> ProfileFacts:
    """A profile in which the innermost frames are removed from each stack until the innermost function is outside of
    the kernel and of a system library.

    Stacks of threads that were interrupted, which end in the kernel's scheduler, are left out. Costs are multiplied by
    ``factor``.
    """
    stacks: dict[str, float] = {}
    for stack, cost in profile.stacks.items():
        if INTERRUPTED_STACK.search(stack):
            continue
        *above, last = stack.split(";")
        while above and SYSTEM_BINARY.match(read_frame(last)[1]):
            *above, last = [*above]
        text = ";".join((*above, last))
        stacks[text] = stacks.get(text, 0.0) + factor * cost
    return replace(profile, stacks=stacks, off_cpu=False)


MAX_STACKS = 800  # number of the costliest stacks of a profile that keep their callers; all are kept in the history
MAX_NAME = 400  # characters of a function's name
NEGLIGIBLE_SHARE = 0.05  # a note mentions a missing share only if it is larger

# Functions in which threads begin.
THREAD_START = re.compile(
    r"_start|__libc_start.*|main|_dl_.*|.*start_thread.*|.*thread_start.*|_*clone3?|ret_from_fork.*|.*goexit.*|.*rt0_go.*|runtime\.m.*"
)
_SYMBOL = re.compile(r"(?P<symbol>.*?) \((?P<path>(?:/|\[|anon_inode|inlined|\S+\)$).*)\)")
_VERSION = re.compile(r"@@?(?!plt\b)[\w.]+$")  # of a symbol: "malloc@@GLIBC_2.2.5"
_NO_FILE = re.compile(r"/SYSV\w+|\[(?:heap|stack)\]|anon_inode.*")
# Names in perf's output of executable memory without a file, and of files by which a just-in-time compiler describes
# this memory.
_COMPILED = re.compile(r".*/perf-\d+\.map|.*/jitted-\d+-\d+\.so|//anon|/dev/zero\b.*|/memfd:.*|\[anon(?::.*)?\]")
_IN_PROCESS = frozenset({"[vdso]", "[vsyscall]", UNKNOWN})  # names in brackets that do not belong to the kernel


@dataclass(frozen=True, slots=True)
class FoldedStacks:
    """The stacks of one profile, with their costs."""

    stacks: Mapping[str, float]  # as in ``ProfileFacts``
    samples: int
    lost: int
    alone: float  # share of the cost whose callers were not found


def folded_stacks(lines: Iterable[str], per_unit: float = 1.0) -> FoldedStacks:
    """The stacks in the output of a host, with their costs divided by ``per_unit``. Lines that are not stacks are
    ignored."""
    costs: dict[str, float] = {}
    samples = lost = 0
    cost_of_rare_stacks = 0.0
    for line in lines:
        cost, _, number_and_chain = line.partition("\t")
        number, _, chain_text = number_and_chain.partition("\t")
        if cost == "lost":
            lost += int(number) if number.isdecimal() else 0
        elif cost.isdecimal() and number.isdecimal():
            thread, *perf_chain = chain_text.split("\t")
            frames_of_stack = chain_frames(perf_chain)
            text = SEPARATOR.join([program_name(thread), *frames_of_stack])
            costs[text] = costs.get(text, 0.0) + int(cost) / per_unit
            samples += int(number)
            cost_of_rare_stacks += int(cost) / per_unit if lacks_callers(frames_of_stack, perf_chain) else 0.0
    total = sum(costs.values())
    return FoldedStacks(merge_rare_stacks(costs), samples, lost, cost_of_rare_stacks / total if total else 0.0)


def lacks_callers(stack_of_frames: Sequence[str], perf_chain: Sequence[str]) -> bool:
    """Whether outer callers are missing from a stack: the outermost frame is neither the first function of a thread nor
    code without a name.

    ``perf_chain`` are the frames that perf printed, innermost first.
    """
    function, binary = read_frame(stack_of_frames[0])
    has_names = binary != KERNEL and not (function.startswith("[") or stored_frame(perf_chain[-1]).startswith("["))
    return len(stack_of_frames) < 2 or (has_names and not THREAD_START.fullmatch(source_name(function)))


def program_name(thread: str) -> str:
    """The name of a program, from the name of its thread."""
    return " ".join(thread.replace(SEPARATOR, ":").split()) or UNKNOWN


def chain_frames(chain: Iterable[str]) -> list[str]:
    """The frames of a call chain, outermost first.

    Consecutive addresses in the same binary without symbols are joined into one frame. Unknown frames at the outer end,
    such as callers of just-in-time compiled code, are left out.
    """
    frames: list[str] = []
    for text in chain:
        frame_text = stored_frame(text)
        if not (frames and frames[-1] == frame_text and frame_text.startswith("[")):
            frames.append(frame_text)
    while len(frames) > 1 and UNKNOWN in (frames[-1], frames[-2] if frames[-1] == f"[{GENERATED}]" else ""):
        frames.pop()
    return frames[::-1] or [UNKNOWN]


def stored_frame(perf_frame: str) -> str:
    """The frame in the form "function (binary)", from a frame that perf printed."""
    if perf_frame == RARE:
        return RARE
    match = _SYMBOL.fullmatch(perf_frame)
    symbol, path = (match["symbol"], match["path"]) if match else (perf_frame, UNKNOWN)
    symbol = "" if symbol == UNKNOWN else _VERSION.sub("", symbol.strip())
    if len(symbol) > MAX_NAME:
        symbol = f"{symbol[: MAX_NAME // 2]}…{symbol[1 - MAX_NAME // 2 :]}"
    return frame(symbol, binary_name(path))


def binary_name(path: str) -> str:
    """The name of a binary, from the path that perf prints: the base name of a file, or a name in brackets for the
    kernel, for just-in-time compiled code, and for other memory without a file.
    """
    path = path.removesuffix(" (deleted)")
    name = path.rpartition("/")[2]
    if _COMPILED.fullmatch(path):
        return "[jit]"
    if _NO_FILE.fullmatch(path):
        return UNKNOWN
    if (path.startswith("[") and path not in _IN_PROCESS) or name.endswith((".ko", ".ko.xz", ".ko.zst", ".ko.gz")):
        return KERNEL
    return name or UNKNOWN


def merge_rare_stacks(costs: Mapping[str, float]) -> dict[str, float]:
    """All stacks and their costs. The ``MAX_STACKS`` costliest stacks are unchanged; in all other stacks, ``RARE``
    replaces the callers of the innermost function. The total cost is unchanged.
    """
    ranked = sorted(costs, key=lambda text: (-costs[text], text))
    stacks = {text: costs[text] for text in ranked[:MAX_STACKS]}
    for text in ranked[MAX_STACKS:]:
        thread, *frames = text.split(SEPARATOR)
        summarised = SEPARATOR.join([thread, RARE, frames[-1]] if len(frames) > 1 else [thread, *frames])
        stacks[summarised] = stacks.get(summarised, 0.0) + costs[text]
    return stacks


MAX_CALL_PAIRS = 5000  # number of pairs of caller and callee that are kept, pairs with most calls first
_NUMBER = re.compile(r"[0-9]{1,18}")


def subtract_short_execution(short: Iterable[str], long: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
    """For each stack and for each call, its count in a ``long`` execution minus its count in a ``short`` execution,
    from the output of a host."""
    difference = numbers_by_item(long) - numbers_by_item(short)
    calls: Counter[str] = Counter()
    for item, number in difference.items():
        kind, *pair = item.split("\t")
        if kind == "calls" and len(pair) == 2:
            calls[SEPARATOR.join(stored_frame(perf_frame) for perf_frame in reversed(pair))] += number
    stacks = folded_stacks(f"{number}\t{item}" for item, number in difference.items()).stacks
    return dict(stacks), {pair: float(number) for pair, number in calls.most_common(MAX_CALL_PAIRS)}


def numbers_by_item(lines: Iterable[str]) -> Counter[str]:
    """Maps each item to the sum of its numbers, from lines "NUMBER<tab>ITEM". Lines of another form are ignored."""
    numbers: Counter[str] = Counter()
    for line in lines:
        number, _, item = line.partition("\t")
        if _NUMBER.fullmatch(number):
            numbers[item] += int(number)
    return numbers
