"""What --skip leaves out of a hunt: candidates that are never built, and count neither as fast nor as slow."""

from collections.abc import Mapping
from pathlib import Path

from perfbisect.core.domain.facts import LEFT_OUT, SkipFacts
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.repository.commits import members
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import CommitRange


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
