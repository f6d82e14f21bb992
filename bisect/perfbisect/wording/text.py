"""Text from repositories, tools and hosts, made safe and readable. Light to import."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfbisect.core.domain.events import Commit

UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def printable(text: str) -> str:
    """Text of a foreign source on one line, without anything that could steer a terminal."""
    return " ".join(UNSAFE.sub(" ", text).split())


def printable_commit(commit: "Commit") -> "Commit":
    """The commit with texts that are safe to print."""
    return type(commit)(commit.sha, printable(commit.date), printable(commit.author), printable(commit.subject))


def cited(commit: "Commit") -> str:
    """A commit in a sentence: hash, day and subject, as far as they are known."""
    about = ", ".join(part for part in (commit.date, f"“{commit.title}”" if commit.subject else "") if part)
    return f"{commit.short} ({about})" if about else commit.short


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def advised(text: str, advice: str) -> str:
    """A warning and its advice, as sentences."""
    stop = "" if text.endswith((".", "!", "?")) or not advice else "."
    return printable(f"{text}{stop} {advice}")


def metric_title(metric: str) -> str:
    """The metric as it is written in a sentence."""
    return "QPS" if metric == "qps" else metric
