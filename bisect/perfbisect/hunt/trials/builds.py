"""The builds that `bisect compare` is given: revisions, and prebuilt binaries as NAME=PATH; with a variant of the compiler's
settings or a configuration of the server: REV, REV@VARIANT, REV+CONFIG, REV@VARIANT+CONFIG and NAME=PATH+CONFIG.

A revision may itself contain @ and +, as in ``HEAD@{1}`` or a tag ``v1+2``, and so may the path of a configuration. So what is
a revision, or a path that exists, is not divided. Of any other word the end is cut off, at the last + before a known
configuration; then at the last @ before a known variant, unless the rest is a revision.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, Series, Settings, TrialBuild
from perfbisect.core.stats.release_series import FEWEST
from perfbisect.errors import UsageError
from perfbisect.hunt.resolve import resolve_commits, worse_direction
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import BOTH
from perfbisect.lab.building.prebuilt import UNPACKERS, is_tarball
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import has_config, load_config, unknown_config
from perfbisect.report.command_line import history_option, of_settings
from perfbisect.repository.commits import ReleaseRange, UnknownRevision, release_ends, release_range, resolve
from perfbisect.repository.discovery import Progress, cached_clone, open_repository
from perfbisect.repository.git import Repository
from perfbisect.store.connection import NoHistory
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_costs
from perfbisect.wording.quantities import count, duration

# An entry of a reflog, and behind it what no revision has there up to its end: git may take all of it for a date.
NO_REVISION = re.compile(r"@\{[^}]*\}(?!([~^]\d*|\^\{[^}]*\})*\Z)")
FORM = "Write NAME=PATH: a folder in which it is installed on the host, or a tarball on this machine."


class Word(NamedTuple):
    """What a word says."""

    revision: str
    variant: str = ""
    config: str = ""


def divided(
    word: str,
    variants: Collection[str],
    is_config: Callable[[str], bool],
    is_revision: Callable[[str], bool] = lambda _: False,
) -> Word:
    """The parts of a word. ``is_config`` is whether a configuration has that name, or a file that path."""
    revision, config = (word, "") if is_revision(word) else cut(word, "+", is_config)
    revision, variant = (revision, "") if is_revision(revision) else cut(revision, "@", variants.__contains__)
    return Word(revision, variant, config)


def cut(word: str, sign: str, known: Callable[[str], bool]) -> tuple[str, str]:
    """What is before and behind the last sign that something known follows; all of the word before it where none does."""
    for at in range(len(word) - 2, 0, -1):
        if word[at] == sign and known(word[at + 1 :]):
            return word[:at], word[at + 1 :]
    return word, ""


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
    division = partial(divided, variants=builder.variants, is_config=partial(has_config, builder))
    if not settings.repository:
        clone = cached_clone(builder, [division(word).revision for word in revisions], clone_progress)
        settings = replace(settings, repository=str(clone))
    repo = open_repository(Path(settings.repository))
    is_revision = partial(has, repo, release_tags=builder.release_tags)
    own = settings.variant or builder.variant  # REV and REV@VARIANT are the same build then
    read: dict[str, Word] = {}
    for word in revisions:
        found = division(word, is_revision=is_revision)
        if not is_revision(found.revision):
            refuse(repo, builder, found.revision, is_revision)
        found = found._replace(variant="") if found.variant == own else found
        if before := next((each for each, other in read.items() if other == found), ""):
            raise UsageError(
                f"{before} and {word} are the same build: it is given twice.",
                "Leave one out. To measure how much one build varies against itself: bisect noise",
            )
        read[word] = found
    settings, commits = resolve_commits(settings, builder, [each.revision for each in read.values()])
    built = {
        name: TrialBuild(name, commit, variant=word.variant, config=word.config)
        for (name, word), commit in zip(read.items(), commits, strict=True)
    }
    return settings, [configured(built.get(each.name, each), builder) for each in subjects]


def refuse(repo: Repository, builder: Builder, word: str, is_revision: Callable[[str], bool]) -> None:
    """Raise UsageError for what is no revision: for the unknown configuration or variant behind one, or for all of it."""
    head, plus, config = word.rpartition("+")
    if plus and is_revision(cut(head, "@", builder.variants.__contains__)[0]):
        raise unknown_config(builder, config)
    head, at, variant = word.rpartition("@")
    if at and not variant.startswith("{") and is_revision(head):
        variant_of(builder, variant.partition("+")[0])
    resolve(repo, word, builder.release_tags)
    raise UsageError(f"'{word}' is no revision.", "Behind an entry of a reflog, only ~ and ^ may follow.")


def has(repo: Repository, revision: str, release_tags: Sequence[str]) -> bool:
    """Whether a revision exists. Raises UsageError for an ambiguous hash."""
    if NO_REVISION.search(revision):
        return False
    try:
        resolve(repo, revision, release_tags)
    except UnknownRevision:
        return False
    return True


def configured(subject: TrialBuild, builder: Builder) -> TrialBuild:
    """The build with the place and the hash of its configuration, if it has one. Raises UsageError where that cannot be."""
    if not subject.config:
        return subject
    place = subject.config if subject.config in builder.configs else str(local(subject.config))
    return replace(subject, config=place, config_hash=load_config(builder, place).hash)


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
    place, config = cut(path, "+", partial(has_config, builder))
    if not (here or is_tarball(place)):
        if not PurePosixPath(place).is_absolute():
            raise UsageError(
                f"The folder {place} of {name} is on host {host}, but its path does not begin with /.", FORM
            )
        return TrialBuild(name, path=place, config=config)
    if is_there(path):
        place, config = path, ""
    elif not is_there(place):
        before, _, behind = path.rpartition("+")
        if before and is_there(before):
            raise unknown_config(builder, behind)
        what = "file" if is_tarball(place) else "folder"
        advice = FORM if what == "file" else f"{FORM} Tarballs end in {', '.join(UNPACKERS)}."
        raise UsageError(f"There is no {what} {local(place)} for {name}.", advice)
    return TrialBuild(name, path=str(local(place)), config=config)


def local(path: str) -> Path:
    """A path of this machine."""
    return Path(path).expanduser().absolute()


def is_there(path: str) -> bool:
    """Whether a tarball, or a folder, is there."""
    place = local(path)
    return place.is_file() if is_tarball(str(place)) else place.is_dir()


def read_releases(
    text: str, settings: Settings, builder: Builder, history: Path | None, clone_progress: Progress | None = None
) -> tuple[Settings, list[TrialBuild], Series]:
    """The releases of ``A..B`` as builds, oldest first, and the settings with what they need to be built.

    ``settings`` has the metric. Raises UsageError where there are too few for a line.
    """
    if not settings.repository:
        settings = replace(settings, repository=str(cached_clone(builder, release_ends(text), clone_progress)))
    found = release_range(open_repository(Path(settings.repository)), text, builder.release_tags)
    if len(found.taken) < FEWEST:
        raise UsageError(
            f"{text} has {count(len(found.taken), 'release')}, and a line with steps needs {FEWEST}.{skipped(found)}",
            f"Name them instead, with the same options: bisect compare {' '.join(found.taken)} …",
        )
    settings = replace(settings, good=found.taken[0], bad=found.taken[-1])
    settings, commits = resolve_commits(settings, builder, found.taken)
    subjects = [TrialBuild(name, commit) for name, commit in zip(found.taken, commits, strict=True)]
    # A hunt compares layouts and explains, unless it is told not to.
    policy = replace(settings.policy, layouts=True, direction=worse_direction(settings.metric))
    hunt = replace(settings, policy=policy, explain=True)
    options = ("--builder", builder.name, *of_settings(hunt), *history_option(history))
    return settings, subjects, Series(text, found.left_out, options)


def skipped(found: ReleaseRange) -> str:
    """What of the range is left out, in a sentence behind another."""
    left = ", ".join(f"{name} ({reason})" for name, reason in found.left_out)
    return f" Left out: {left}." if left else ""


def cost(setup: SessionSetup, settings: Settings, history: Path | None) -> Iterator[str]:
    """What a comparison would measure, and how long that takes as far as it is known."""
    request = setup.request
    builds, works = len(request.subjects), len(request.works)
    yield f"{count(builds, 'build')}: {', '.join(subject.name for subject in request.subjects)}"
    if request.series:
        yield from (f"left out: {name}, {reason}" for name, reason in request.series.left_out)
    visits = builds * works
    timed = builds * sum(request.runs * (work.warmup + work.time) for work in request.works)
    yield f"{count(request.rounds, 'round')} of {count(visits, 'visit')}, {count(request.runs, 'run')} each"
    if request.pairing is Pairing.AUTO:
        yield f"to choose how: the first {BOTH} rounds interleaved, then {count(PAIRS_FIRST, 'pair')} of runs"
    start = "a start of the server on a copy of its data" if setup.builder.server else "a copy of the data"
    commands = [" ".join(workload.command) for workload in setup.works if workload.command]
    if any("{time}" not in command for command in commands):  # it ends by itself
        yield f"a round: runs of unknown length, since a command ends by itself, and in each visit {start}"
    else:
        yield (
            f"a round: {duration(timed)} of runs, and in each visit {start}; all rounds: {duration(timed * request.rounds)}"
        )
    each = build_seconds(settings, history)
    if each is None:
        yield "builds: of unknown length, as no hunt of the history has made any; those that the host has are used again"
    else:
        yield f"builds: {duration(each)} each in earlier hunts, {duration(each * builds)} if the host has none of them"


def build_seconds(settings: Settings, history: Path | None) -> float | None:
    """What a build takes in earlier hunts; None where there are none."""
    try:
        with closing(History.open(history, read_only=True)) as opened:
            return read_costs(opened, settings).build
    except (NoHistory, UsageError):
        return None
