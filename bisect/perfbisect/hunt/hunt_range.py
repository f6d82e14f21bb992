"""The range of a hunt, as its repository has it, and what --skip leaves out of it.

What is left out is never built, and counts neither as fast nor as slow.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfbisect.core.domain.facts import LEFT_OUT, SkipFacts
from perfbisect.core.domain.settings import Settings
from perfbisect.core.inference.ancestry import suspected
from perfbisect.errors import UsageError
from perfbisect.recipes.builder import Builder
from perfbisect.repository.commits import members, touched
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import CommitRange, read_range


def read_hunt_range(settings: Settings, builder: Builder) -> tuple[CommitRange, tuple[str, ...]]:
    """The range of a hunt from its repository, and the suspected paths that no commit of it touches."""
    repository = open_repository(Path(settings.repository))
    ends, first_parent = (settings.good_commit, settings.bad_commit), settings.first_parent
    span = read_range(repository, *ends, builder.ignore, first_parent=first_parent)
    found = touched(repository, *ends, settings.suspects, first_parent=first_parent)
    suspicious = replace(span, graph=suspected(span.graph, span.candidates, found, settings.suspects))
    return suspicious, tuple(path for path in settings.suspects if not found[path])


def left_out(settings: Settings, span: CommitRange) -> tuple[SkipFacts, ...]:
    """The candidates that the settings leave out, oldest first.

    Raises UsageError where an end would be left out, or every candidate between them, and for what leaves out nothing.
    """
    by: dict[str, str] = {}  # commit → as written
    repository = open_repository(Path(settings.repository)) if settings.skips else None
    for text, resolved in settings.skips.items():
        assert repository
        found = members(repository, resolved)
        for commit, name in _ends(settings, span).items():
            if commit in found:
                raise UsageError(
                    f"--skip {text} leaves out {name}, {commit[:10]}, without which nothing can be compared.",
                    "Give another end, or leave out less.",
                )
        own = [commit for commit in span.candidates if commit in found]
        if not own:
            raise UsageError(
                f"--skip {text} leaves out nothing: none of its commits is a candidate of"
                f" {settings.good}..{settings.bad}.",
                "Candidates are the commits of that range that change a path which the recipe does not ignore.",
            )
        by = dict.fromkeys(own, text) | by
    inner = set(span.candidates[1 + span.graph.branch_points : -1])
    if inner and inner <= by.keys():
        raise UsageError(
            f"--skip leaves out every candidate between {settings.good} and {settings.bad}, so there is nothing to search.",
            "Leave out less.",
        )
    return tuple(
        SkipFacts(commit, LEFT_OUT, f"by --skip {by[commit]}", "", 0.0) for commit in span.candidates if commit in by
    )


def _ends(settings: Settings, span: CommitRange) -> Mapping[str, str]:
    """The commits that a hunt cannot do without, with their names."""
    return {
        span.candidates[0]: "the merge base",  # unless it is good itself
        settings.good_commit: "the good end",
        span.candidates[-1]: "the bad end",
        settings.bad_commit: "the bad end",
    }
