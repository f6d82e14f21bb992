"""The builds that `bisect compare` is given: revisions, and prebuilt binaries as NAME=PATH; with a variant of the compiler's
settings or a configuration of the server.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from perfbisect.core.domain.settings import Settings, TrialBuild
from perfbisect.errors import UsageError
from perfbisect.hunt.resolve import resolve_commits
from perfbisect.hunt.trials.build_words import Reading, guesses, readings
from perfbisect.lab.build.prebuilt import UNPACKERS, is_tarball
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import has_config, load_config, unknown_config
from perfbisect.repository.commits import UnknownRevision, resolve
from perfbisect.repository.discovery import Progress, cached_clone, open_repository
from perfbisect.repository.git import Repository

# An entry of a reflog, and behind it what no revision has there up to its end: git may take all of it for a date.
NO_REVISION = re.compile(r"@\{[^}]*\}(?!([~^]\d*|\^\{[^}]*\})*\Z)")
FORM = "Write NAME=PATH: a folder in which it is installed on the host, or a tarball on this machine."


def read_builds(
    words: Sequence[str], settings: Settings, builder: Builder, clone_progress: Progress | None = None
) -> tuple[Settings, list[TrialBuild]]:
    """The builds to compare, and the settings with what the revisions among them need to be built.

    Raises UsageError for fewer than two, for a name that is given twice, for a file or folder that does not exist, and for
    an unknown variant or configuration.
    """
    here = load_host(settings.host, settings.hosts_path).is_here
    subjects = [named(word, settings.host, builder, here=here) for word in words]
    names = [subject.name for subject in subjects]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{twice} is given twice.", "Give each build a name of its own: NAME=PATH for binaries.")
    if len(subjects) < 2:
        raise UsageError(
            "A comparison takes at least two builds; the first is the baseline.",
            "To measure how much one build varies against itself: bisect noise",
        )
    if all(subject.path for subject in subjects):
        return replace(settings, repository="", variant=""), [configured(each, builder) for each in subjects]
    revisions = [subject.name for subject in subjects if not subject.path]
    found = {word: [*readings(word, builder.variants, partial(has_config, builder))] for word in revisions}
    if not settings.repository:
        shortest = [each[-1].revision for each in found.values()]
        settings = replace(settings, repository=str(cached_clone(builder, shortest, clone_progress)))
    git = open_repository(Path(settings.repository))
    read = {word: plain(choose(git, builder, several), settings, builder) for word, several in found.items()}
    refuse_equal(read)
    settings, commits = resolve_commits(settings, builder, [each.revision for each in read.values()])
    commit_of = dict(zip(read, commits, strict=True))
    return settings, [
        configured(
            replace(each, commit=commit_of[each.name], variant=read[each.name].variant, config=read[each.name].config)
            if each.name in read
            else each,
            builder,
        )
        for each in subjects
    ]


def plain(reading: Reading, settings: Settings, builder: Builder) -> Reading:
    """The reading without a variant that is the comparison's own: REV and REV@VARIANT are the same build then."""
    own = settings.variant or builder.variant
    return replace(reading, variant="") if reading.variant == own else reading


def refuse_equal(read: Mapping[str, Reading]) -> None:
    """Raise UsageError for two words of the same revision, as it is written, in one variant and configuration."""
    words: dict[Reading, str] = {}
    for word, reading in read.items():
        if (before := words.setdefault(reading, word)) != word:
            raise UsageError(
                f"{before} and {word} are the same build: it is given twice.",
                "Leave one out. To measure how much one build varies against itself: bisect noise",
            )


def choose(git: Repository, builder: Builder, several: Sequence[Reading]) -> Reading:
    """The first reading of a word whose revision exists.

    Raises UsageError where none does: for an unknown variant or configuration of one that does, or an unknown revision.
    """
    for reading in several:
        if has(git, reading.revision, builder.release_tags):
            return reading
    guessed = [each for each in guesses(several[0].word) if has(git, each.revision, builder.release_tags)]
    for guess in guessed:
        if guess.config and (not guess.variant or guess.variant in builder.variants):
            raise unknown_config(builder, guess.config)
    for guess in sorted(guessed, key=lambda each: not (each.config and has_config(builder, each.config))):
        variant_of(builder, guess.variant)
    resolve(git, several[-1].revision, builder.release_tags)
    raise UsageError(f"'{several[0].word}' is no revision.", "Behind an entry of a reflog, only ~ and ^ may follow.")


def has(git: Repository, revision: str, release_tags: Sequence[str]) -> bool:
    """Whether a revision exists. Raises UsageError for an ambiguous hash."""
    if NO_REVISION.search(revision):
        return False
    try:
        resolve(git, revision, release_tags)
    except UnknownRevision:
        return False
    return True


def configured(subject: TrialBuild, builder: Builder) -> TrialBuild:
    """The build with the hash of its configuration, if it has one. Raises UsageError where that cannot be."""
    return replace(subject, config_hash=load_config(builder, subject.config).hash) if subject.config else subject


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


def named(word: str, host: str, builder: Builder, *, here: bool) -> TrialBuild:
    """One build; ``here`` says whether the host is this machine."""
    name, is_path, path = word.partition("=")
    if not is_path:
        return TrialBuild(word)
    if not name or not path:
        raise UsageError(f"'{word}' has no {'path' if name else 'name'}.", FORM)
    several = [*readings(path, (), partial(has_config, builder))]
    if here or is_tarball(several[-1].revision):
        return local(name, path, several, builder)
    place = several[-1].revision
    if not PurePosixPath(place).is_absolute():
        raise UsageError(f"The folder {place} of {name} is on host {host}, but its path does not begin with /.", FORM)
    return TrialBuild(name, path=place, config=several[-1].config)


def local(name: str, path: str, several: Sequence[Reading], builder: Builder) -> TrialBuild:
    """A tarball or a folder of this machine, by the first reading of its path that exists."""
    for reading in several:
        place = Path(reading.revision).expanduser().absolute()
        if is_there(place):
            return TrialBuild(name, path=str(place), config=reading.config)
    for guess in guesses(path):
        if guess.config and not guess.variant and is_there(Path(guess.revision).expanduser().absolute()):
            raise unknown_config(builder, guess.config)
    what = "file" if is_tarball(several[-1].revision) else "folder"
    advice = FORM if what == "file" else f"{FORM} Tarballs end in {', '.join(UNPACKERS)}."
    place = Path(several[-1].revision).expanduser().absolute()
    raise UsageError(f"There is no {what} {place} for {name}.", advice)


def is_there(place: Path) -> bool:
    """Whether a tarball, or a folder, is there."""
    return place.is_file() if is_tarball(str(place)) else place.is_dir()
