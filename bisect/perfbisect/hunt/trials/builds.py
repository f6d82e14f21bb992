"""Reads the arguments of `bisect compare`, which are builds: revisions, or prebuilt binaries (NAME=PATH).

A revision may be followed by @ and a variant (compiler settings). Each build may be followed by + and a configuration
(server settings). So the forms are REV, REV@VARIANT, REV+CONFIG, REV@VARIANT+CONFIG, NAME=PATH, NAME=PATH+CONFIG.

Revisions such as ``HEAD@{1}`` or a tag ``v1+2``, and paths of configurations, may contain @ and +. Therefore perfbisect
does not divide an argument at @ or + if the whole argument is a revision or an existing path. Any other argument is
divided at the last + that is followed by a known configuration. If the text before this + is not a revision, the text
is divided at the last @ that is followed by a known variant.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, ReleaseSeries, Settings, TrialBuild
from perfbisect.core.stats.release_series import FEWEST
from perfbisect.errors import UsageError
from perfbisect.hunt.resolve import resolve_commits, worse_direction
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import BOTH
from perfbisect.lab.building.prebuilt import UNPACKERS, is_tarball
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import has_config, load_config, unknown_config_error
from perfbisect.report.command_line import options_of_settings
from perfbisect.repository.commits import (
    ReleaseRange,
    UnknownRevision,
    ends_of_release_range,
    releases_in_range,
    resolve_commit,
)
from perfbisect.repository.discovery import Progress, cached_clone, open_repository
from perfbisect.repository.git import Repository
from perfbisect.store.connection import NoHistory, history_option
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_typical_costs
from perfbisect.wording.quantities import count, duration

# @{…} with a suffix that no revision can have. Git might read such an argument as a date, and not refuse it.
NO_REVISION = re.compile(r"@\{[^}]*\}(?!([~^]\d*|\^\{[^}]*\})*\Z)")
FORM = "Give NAME=PATH. PATH is a folder of the host with the installed build, or a tarball on this machine."


class BuildArgument(NamedTuple):
    """The parts of an argument such as REV@VARIANT+CONFIG."""

    revision: str
    variant: str = ""
    config: str = ""


def parse_build_argument(
    argument: str,
    variants: Collection[str],
    is_config: Callable[[str], bool],
    is_revision: Callable[[str], bool] = lambda _: False,
) -> BuildArgument:
    """The parts of an argument that names a build.

    ``is_config`` returns whether a text is the name of a configuration or the path of a configuration file.
    """
    revision, config = (argument, "") if is_revision(argument) else cut_at_known(argument, "+", is_config)
    revision, variant = (revision, "") if is_revision(revision) else cut_at_known(revision, "@", variants.__contains__)
    return BuildArgument(revision, variant, config)


def cut_at_known(word: str, sign: str, is_known: Callable[[str], bool]) -> tuple[str, str]:
    """The texts before and after the last ``sign`` in ``word`` after which the text is known; if there is none,
    ``word`` and ""."""
    for at in range(len(word) - 2, 0, -1):
        if word[at] == sign and is_known(word[at + 1 :]):
            return word[:at], word[at + 1 :]
    return word, ""


def read_builds(
    words: Sequence[str], settings: Settings, builder: Builder, clone_progress: Progress | None = None
) -> tuple[Settings, list[TrialBuild]]:
    """The settings, to which the repository and the commits of the builds are added; and the builds.

    Raises UsageError for fewer than two builds, for a repeated name, for a file or folder that does not exist, and for
    an unknown variant or configuration.
    """
    is_here = load_host(settings.host, settings.hosts_path).is_local
    subjects = [named_build(word, settings.host, builder, is_here=is_here) for word in words]
    names = [subject.name for subject in subjects]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"The build {twice} is given twice.",
            "Give each build a different name. To name an installed build: NAME=PATH.",
        )
    if len(subjects) < 2:
        raise UsageError(
            "A comparison needs at least two builds. The first build is the baseline.",
            "To measure how much the runs of one build vary: bisect noise",
        )
    if all(subject.path for subject in subjects):
        return replace(settings, repository="", variant=""), [with_config(build, builder) for build in subjects]
    revisions = [subject.name for subject in subjects if not subject.path]
    parse = partial(parse_build_argument, variants=builder.variants, is_config=partial(has_config, builder))
    if not settings.repository:
        clone = cached_clone(builder, [parse(word).revision for word in revisions], clone_progress)
        settings = replace(settings, repository=str(clone))
    repo = open_repository(Path(settings.repository))
    is_revision = partial(has_revision, repo, release_tags=builder.release_tags)
    usual = settings.variant or builder.variant  # REV and REV@VARIANT are one build if VARIANT is this variant
    read: dict[str, BuildArgument] = {}
    for word in revisions:
        parts = parse(word, is_revision=is_revision)
        if not is_revision(parts.revision):
            raise_unknown_build_error(repo, builder, parts.revision, is_revision)
        parts = parts._replace(variant="") if parts.variant == usual else parts
        if twin := next((earlier for earlier, earlier_parts in read.items() if earlier_parts == parts), ""):
            raise UsageError(
                f"{twin} and {word} are the same build, which is given twice.",
                "Omit one of the two. To measure how much the runs of one build vary: bisect noise",
            )
        read[word] = parts
    settings, commits = resolve_commits(settings, builder, [parts.revision for parts in read.values()])
    built = {
        name: TrialBuild(name, commit, variant=word.variant, config=word.config)
        for (name, word), commit in zip(read.items(), commits, strict=True)
    }
    return settings, [with_config(built.get(build.name, build), builder) for build in subjects]


def raise_unknown_build_error(
    repo: Repository, builder: Builder, argument: str, is_revision: Callable[[str], bool]
) -> None:
    """Raise a UsageError that says what is wrong with an argument that is no build: the revision, the variant or the
    configuration is unknown."""
    head, plus, config = argument.rpartition("+")
    if plus and is_revision(cut_at_known(head, "@", builder.variants.__contains__)[0]):
        raise unknown_config_error(builder, config)
    head, at, variant = argument.rpartition("@")
    if at and not variant.startswith("{") and is_revision(head):
        find_variant(builder, variant.partition("+")[0])
    resolve_commit(repo, argument, builder.release_tags)
    raise UsageError(f"'{argument}' is no revision.", "Behind an entry of a reflog, only ~ and ^ may follow.")


def has_revision(repo: Repository, revision: str, release_tags: Sequence[str]) -> bool:
    """Whether a revision exists. Raises UsageError if a hash is ambiguous."""
    if NO_REVISION.search(revision):
        return False
    try:
        resolve_commit(repo, revision, release_tags)
    except UnknownRevision:
        return False
    return True


def with_config(subject: TrialBuild, builder: Builder) -> TrialBuild:
    """The build, to which the path and hash of its configuration file are added. Raises UsageError for an invalid
    configuration."""
    if not subject.config:
        return subject
    config = subject.config if subject.config in builder.configs else str(absolute_path(subject.config))
    return replace(subject, config=config, config_hash=load_config(builder, config).content_hash)


def check_typed_builds(words: Sequence[str], settings: Settings, builder: Builder) -> None:
    """Raise UsageError if there are no builds or several hosts. For a builder of installed systems, which builds
    nothing, raise UsageError instead if builds are given.
    """
    if builder.installed and words:
        raise UsageError(
            f"Builder {builder.name} compares hosts and builds nothing, so {words[0]} cannot be measured.",
            f"Omit {words[0]}. Give each host that is compared with an option --host of its own.",
        )
    if not builder.installed and not words:
        raise UsageError("No builds are given.", "Name at least two builds. The first build is the baseline.")
    if not builder.installed and len(settings.hosts) > 1:
        raise UsageError(
            "Builds are compared on one host, but several hosts are given.",
            "Give one --host. Or, to compare the hosts instead of builds: --builder host",
        )


def hosts_as_builds(settings: Settings, builder: Builder, *, min_hosts: int) -> tuple[Settings, list[TrialBuild]]:
    """For a builder that uses installed systems, a comparison compares hosts. Returns the settings without a
    repository, and a build for each host.

    Raises UsageError if there are fewer hosts than ``min_hosts``.
    """
    if len(settings.hosts) < min_hosts:
        raise UsageError(
            f"With builder {builder.name}, a comparison needs at least two hosts. The first host is the baseline.",
            "Give each host with --host. To measure how much the runs of one host vary: bisect noise",
        )
    builds = [TrialBuild(name, path=builder.installed) for name in settings.hosts]
    return replace(settings, repository="", variant=""), builds


def named_build(word: str, host: str, builder: Builder, *, is_here: bool) -> TrialBuild:
    """The build that the argument ``word`` names.

    ``is_here`` is true if the host is this machine. Raises UsageError for a path that cannot be the path of a build.
    """
    name, is_path, path = word.partition("=")
    if not is_path:
        return TrialBuild(word)
    if not name or not path:
        raise UsageError(f"'{word}' has no {'path' if name else 'name'}.", FORM)
    location, config = cut_at_known(path, "+", partial(has_config, builder))
    if not (is_here or is_tarball(location)):
        if not PurePosixPath(location).is_absolute():
            raise UsageError(
                f"The folder {location} of {name} is on host {host}, but its path does not begin with /.", FORM
            )
        return TrialBuild(name, path=location, config=config)
    if is_there(path):
        location, config = path, ""
    elif not is_there(location):
        head, _, tail = path.rpartition("+")
        if head and is_there(head):
            raise unknown_config_error(builder, tail)
        sort = "file" if is_tarball(location) else "folder"
        advice = FORM if sort == "file" else f"{FORM} Tarballs end in {', '.join(UNPACKERS)}."
        raise UsageError(f"There is no {sort} {absolute_path(location)} for build {name}.", advice)
    return TrialBuild(name, path=str(absolute_path(location)), config=config)


def absolute_path(path: str) -> Path:
    """The absolute path of a file or folder on this machine."""
    return Path(path).expanduser().absolute()


def is_there(path: str) -> bool:
    """Whether the tarball or folder ``path`` exists on this machine."""
    location = absolute_path(path)
    return location.is_file() if is_tarball(str(location)) else location.is_dir()


def read_releases(
    text: str, settings: Settings, builder: Builder, history: Path | None, clone_progress: Progress | None = None
) -> tuple[Settings, list[TrialBuild], ReleaseSeries]:
    """For a range of releases ``A..B``: the settings of a comparison, a build for each release (oldest first), and the
    ReleaseSeries.

    ``settings`` must contain the metric. Raises UsageError if the range has too few releases to find changes between
    releases.
    """
    if not settings.repository:
        settings = replace(settings, repository=str(cached_clone(builder, ends_of_release_range(text), clone_progress)))
    releases = releases_in_range(open_repository(Path(settings.repository)), text, builder.release_tags)
    if len(releases.included) < FEWEST:
        raise UsageError(
            f"{text} has {count(len(releases.included), 'release')}, but --each-release needs at least {FEWEST}.{left_out_text(releases)}",
            f"Name the releases instead, with the same options: bisect compare {' '.join(releases.included)} …",
        )
    settings = replace(settings, good=releases.included[0], bad=releases.included[-1])
    settings, commits = resolve_commits(settings, builder, releases.included)
    subjects = [TrialBuild(name, commit) for name, commit in zip(releases.included, commits, strict=True)]
    # A hunt for a step has the defaults of `bisect run`: it uses randomized layouts, and measures the reason.
    policy = replace(settings.policy, layouts=True, direction=worse_direction(settings.metric))
    hunt = replace(settings, policy=policy, explain=True)
    options = ("--builder", builder.name, *options_of_settings(hunt), *history_option(history))
    return settings, subjects, ReleaseSeries(text, releases.left_out, options)


def left_out_text(releases: ReleaseRange) -> str:
    """A blank and a sentence that lists the releases of the range that are not measured; "" if all are measured."""
    omitted = ", ".join(f"{name} ({reason})" for name, reason in releases.left_out)
    return f" Left out: {omitted}." if omitted else ""


def cost_lines(setup: SessionSetup, settings: Settings, history: Path | None) -> Iterator[str]:
    """Lines of text with the numbers of builds and runs of a comparison, and with its duration, if this can be
    estimated."""
    request = setup.request
    builds, works = len(request.subjects), len(request.works)
    yield f"{count(builds, 'build')}: {', '.join(subject.name for subject in request.subjects)}"
    if request.series:
        yield from (f"left out: {name} ({reason})" for name, reason in request.series.left_out)
    visits = builds * works
    timed = builds * sum(request.runs * (work.warmup + work.time) for work in request.works)
    yield f"{count(request.rounds, 'round')} of {count(visits, 'visit')}; a visit: {count(request.runs, 'run')} of one build in one workload"
    if request.pairing is Pairing.AUTO:
        yield f"the choice between interleaved and paired runs: {BOTH} rounds interleaved, then {count(PAIRS_FIRST, 'pair')} of runs"
    start = "a start of the server on a copy of its data" if setup.builder.server else "a copy of the data"
    commands = [" ".join(workload.command) for workload in setup.works if workload.command]
    if any("{time}" not in command for command in commands):  # a command of unknown length
        yield f"duration of a round: unknown, because the command decides when it ends; each visit also needs {start}"
    else:
        all_rounds = duration(timed * request.rounds)
        yield f"duration of the runs: {duration(timed)} a round, {all_rounds} in all; each visit also needs {start}"
    seconds = usual_build_seconds(settings, history)
    if seconds is None:
        yield "duration of a build: unknown, because the history has no build; builds that the host already has are used again"
    else:
        yield f"duration of all builds: {duration(seconds * builds)} if the host has no build ({duration(seconds)} for each build in earlier hunts)"


def usual_build_seconds(settings: Settings, history: Path | None) -> float | None:
    """The typical duration of a build in earlier hunts, in seconds; None if there are no earlier hunts."""
    try:
        with closing(History.open(history, read_only=True)) as opened:
            return read_typical_costs(opened, settings).build_seconds
    except (NoHistory, UsageError):
        return None
