"""The builds that `bisect compare` is given: revisions, and prebuilt binaries as NAME=PATH."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from perfbisect.core.domain.settings import Settings
from perfbisect.core.domain.trials import TrialBuild
from perfbisect.errors import UsageError
from perfbisect.hunt.resolve import resolve_commits
from perfbisect.lab.build.prebuilt import UNPACKERS, is_tarball
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.find import load_host
from perfbisect.repository.clone import Progress

FORM = "Write NAME=PATH: a folder in which it is installed on the host, or a tarball on this machine."


def read_builds(
    words: Sequence[str], settings: Settings, builder: Builder, clone_progress: Progress | None = None
) -> tuple[Settings, list[TrialBuild]]:
    """The builds to compare, and the settings with what the revisions among them need to be built.

    Raises UsageError for fewer than two, for a name that is given twice, and for a file or folder that does not exist.
    """
    here = load_host(settings.host, settings.hosts_path).is_here
    subjects = [named(word, settings.host, here=here) for word in words]
    names = [subject.name for subject in subjects]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{twice} is given twice.", "Give each build a name of its own: NAME=PATH for binaries.")
    if len(subjects) < 2:
        raise UsageError(
            "A comparison takes at least two builds; the first is the baseline.",
            "To measure how much one build varies against itself: bisect noise",
        )
    revisions = [subject.name for subject in subjects if not subject.path]
    if not revisions:
        return replace(settings, repository="", variant=""), subjects
    settings, commits = resolve_commits(settings, builder, revisions, clone_progress=clone_progress)
    commit_of = dict(zip(revisions, commits, strict=True))
    return settings, [replace(each, commit=commit_of.get(each.name, "")) for each in subjects]


def check_words(words: Sequence[str], settings: Settings, builder: Builder) -> None:
    """Raise UsageError for builds or hosts that do not fit: builds take turns on one host, or hosts without builds."""
    if builder.installed and words:
        raise UsageError(
            f"Nothing of {builder.name} is built, so {words[0]} is no build of it.",
            "Name the hosts that are compared with --host, each with its own.",
        )
    if not builder.installed and not words:
        raise UsageError("No builds are given.", "Name at least two; the first is the baseline.")
    if not builder.installed and len(settings.hosts) > 1:
        raise UsageError(
            "Builds are compared on one host, but several are given.",
            "Hosts are compared by a builder that builds nothing: --builder host",
        )


def hosts_as_builds(settings: Settings, builder: Builder, *, least: int) -> tuple[Settings, list[TrialBuild]]:
    """The hosts of the settings as what is measured, for a builder that builds nothing, and settings without a repository.

    Raises UsageError for fewer hosts than ``least``.
    """
    if len(settings.hosts) < least:
        raise UsageError(
            f"A comparison by {builder.name} is of hosts and takes at least two of them; the first is the baseline.",
            "Give each with --host. To measure how much one host varies against itself: bisect noise",
        )
    return replace(settings, repository="", variant=""), [
        TrialBuild(name, path=builder.installed) for name in settings.hosts
    ]


def named(word: str, host: str, *, here: bool) -> TrialBuild:
    """One build; ``here`` says whether the host is this machine."""
    name, is_path, path = word.partition("=")
    if not is_path:
        return TrialBuild(word)
    if not name or not path:
        raise UsageError(f"'{word}' has no {'path' if name else 'name'}.", FORM)
    if here or is_tarball(path):
        local = Path(path).expanduser().absolute()
        if not (local.is_file() if is_tarball(path) else local.is_dir()):
            what = "file" if is_tarball(path) else "folder"
            advice = FORM if is_tarball(path) else f"{FORM} Tarballs end in {', '.join(UNPACKERS)}."
            raise UsageError(f"There is no {what} {local} for {name}.", advice)
        return TrialBuild(name, path=str(local))
    if not PurePosixPath(path).is_absolute():
        raise UsageError(f"The folder {path} of {name} is on host {host}, but its path does not begin with /.", FORM)
    return TrialBuild(name, path=path)
