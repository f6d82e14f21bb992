"""Makes texts from repositories, tools and hosts safe and readable. This module imports no slow module, so that
commands start fast."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from perfbisect.masking import mask_credentials

if TYPE_CHECKING:
    from perfbisect.core.domain.events import Commit, ExecutionStarted

# Characters that steer a terminal, reorder text or cannot be seen: control characters except tab and newline, format
# characters, surrogates, line separators, fillers, and variation selectors except the two of emoji (U+FE0E, U+FE0F).
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    r"""The text, made safe to print: characters that control a terminal or deceive a reader are escaped, and passwords
    are masked.

    >>> print(safe("\x1b]0;title\x07"))
    \x1b]0;title\x07
    """
    if not _is_printable_ascii(text):
        text = UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return mask_credentials(text)


def safe_json(text: str) -> str:
    """A JSON text made safe to print. The values in the result are the same as in ``text``, except for masked
    passwords."""
    if not _is_printable_ascii(text):
        text = UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f", text)
    return mask_credentials(text)


def _is_printable_ascii(text: str) -> bool:
    """Whether a text is one line of printable ASCII, so that nothing must be escaped. Most texts are; and this check is
    much faster than a search for ``UNSAFE``.
    """
    return text.isascii() and text.rstrip("\n").isprintable()


def printable(text: str) -> str:
    """A text from any source, made safe to print, on one line: each sequence of white space becomes a single blank."""
    return safe(" ".join(text.split()))


def safe_line(text: str) -> str:
    """A text from any source, made safe to print, on one line, with its blanks unchanged."""
    return safe(" ".join(text.splitlines()))


def shell_words(words: Iterable[str]) -> str:
    r"""The words of a command, joined to a text that the user can copy into a shell. Characters that `safe` would
    escape are quoted by `$'…'`.

    >>> print(shell_words(["rm", "a\x1bb", "a b"]))
    rm $'a\x1bb' 'a b'
    """
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    """A word of a command, quoted for a shell. If the word has unsafe characters, tabs or several lines, the quotes are
    `$'…'`."""
    if not UNSAFE.search(word) and "\n" not in word and "\t" not in word:
        return shlex.quote(word)
    return f"$'{''.join(_escaped(sign) for sign in word)}'"


_QUOTED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}


def _escaped(sign: str) -> str:
    if sign in _QUOTED or not UNSAFE.match(sign):
        return _QUOTED.get(sign, sign)
    byte_of_a_path = "\udc80" <= sign <= "\udcff"
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="surrogateescape" if byte_of_a_path else "replace"))


def printable_commit(commit: "Commit") -> "Commit":
    """The commit with texts that are safe to print."""
    return type(commit)(commit.sha, printable(commit.date), printable(commit.author), printable(commit.subject))


def cited(commit: "Commit") -> str:
    """A text about a commit for a sentence: its hash, and, if known, its date and subject."""
    about = ", ".join(part for part in (commit.date, f"“{commit.short_subject}”" if commit.subject else "") if part)
    return f"{commit.short_sha} ({about})" if about else commit.short_sha


def listed(names: Sequence[str]) -> str:
    """Names joined for a sentence: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def advised(text: str, advice: str) -> str:
    """A warning and the advice for the user, as sentences that are safe to print."""
    stop = "" if text.endswith((".", "!", "?")) or not advice else "."
    return printable(f"{text}{stop} {advice}")


def metric_title(metric: str) -> str:
    """The name of a metric as a sentence shows it, such as QPS or cpu/o."""
    return "QPS" if metric == "qps" else metric


UNITS = {"time/o": "time/o, µs", "cpu/o": "cpu/o, µs", "ipc": "instructions/cycle", "time/cpu": "time/CPU time"}
UNITS |= {metric: f"{metric}, ms" for metric in ("latency", "p95", "p99")}


def with_unit(metric: str) -> str:
    """The name of a metric and the unit of its values, for an axis of a chart or a row of a table."""
    return UNITS.get(metric, metric_title(metric))


def counted_execution_text(started: "ExecutionStarted") -> str:
    """A text that says why the workload is now executed under the instruction counter: to find the necessary number of
    operations, or to count instructions."""
    if not started.of:
        return f"counting, how long is long enough: {started.operations:,}"
    length = f" {started.operations:,} operations" if started.operations else ""
    return f"counting{length}{f', {started.number} of {started.of}' if started.of > 1 else ''}"


def patch_summary(patches: Mapping[str, bool]) -> str:
    """A text that names the patches that were applied to a build, and the patches that do not fit its commit; "" if
    there are no patches."""
    applied = [printable(name) for name, is_applied in patches.items() if is_applied]
    omitted = [printable(name) for name, is_applied in patches.items() if not is_applied]
    return ", ".join(f"{word} {listed(names)}" for word, names in (("with", applied), ("without", omitted)) if names)


_COMMANDS_OF_SYSTEM = {  # build system → a summary of its commands
    "auto": "the first build system that each commit has",
    "cmake": "cmake: cmake, cmake --build, its install script",
    "meson": "meson: meson setup, ninja, meson install",
    "autotools": "autotools: configure, make, make install",
    "make": "make: make, then make install if the Makefile has this target",
    "cargo": "cargo: cargo build --release --offline",
    "go": "go: go build -trimpath",
}


def recognised_system_text(system: str) -> str:
    """A text that names the recognised build system and its commands; "" if the user or a recipe gives the build
    commands."""
    return _COMMANDS_OF_SYSTEM.get(system, "")
