"""Builds and installs a system from a commit, using ccache.

Each build uses the same three folders below ``root/work/BUILDER``: ``source``; ``build``, which is empty at the begin
of a clean build; and ``prefix``, from which the installation is moved to the folder of finished builds. All builds have
the same paths and the same environment, so that builds differ only by their commits. In a search, a build may be
incremental: made in the folders as the last build left them. One job on the host configures, compiles and installs.
"""

import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import PurePosixPath
from secrets import token_hex

from perfbisect.core.domain.events import Warned
from perfbisect.host import facts
from perfbisect.host.facts import SYSTEM
from perfbisect.host.packages import missing_needs_error
from perfbisect.host.protocol import Host
from perfbisect.lab.building import links
from perfbisect.lab.building.commit_build import commit_build
from perfbisect.lab.building.log_parser import BuildStep
from perfbisect.lab.building.plan import BuildContext, InstalledBuild
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.building.toolchain import (
    NEEDED,
    SYSTEM_FACTS,
    build_dependencies_command,
    cache_namespace,
    missing_programs_and_needs,
    recipe_packages,
    share_cache,
    toolchain,
)
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import find_variant, required_build_section
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.git import Repository


def build_context(
    host: Host,
    entry: HostEntry,
    builder: Builder,
    variant: str,
    bare: PurePosixPath,
    repository: Repository,
    *,
    layouts: bool = False,
) -> BuildContext:
    """The settings and tools that all builds of ``variant`` on a host share. If ``variant`` is "", the recipe's variant
    is used. If ``layouts`` is true, the builds can be linked again.

    Raises EnvironmentFailure, whose advice names the packages to install, if the host lacks a program.
    """
    name = variant or builder.variant
    recorder = links.install_recorder(host) if layouts else None
    settings = links.with_function_sections(find_variant(builder, name), recorder)
    how = required_build_section(builder)
    if lacks := missing_programs_and_needs(host, [*NEEDED], how, settings):
        answers = facts.read_facts(host, SYSTEM_FACTS)
        system = answers.get(SYSTEM) or ""
        command = build_dependencies_command(builder, answers)
        raise missing_needs_error(lacks, host.name, system, recipe_packages(how), command)
    share_cache(host, entry.ccache_remote)
    tools = toolchain(host, settings)
    namespace = cache_namespace(host, tools.processor)
    session = token_hex(8)
    return BuildContext(
        host, entry, builder, name, settings, tools, bare, repository, namespace, recorder=recorder, session=session
    )


def build_key_of_commit(context: BuildContext, sha: str) -> str:
    """The key of the build of a commit, whether the build exists or not. Raises BuildFailed if git cannot read the
    commit.
    """
    return commit_build(context, sha).key


def find_stored_build(context: BuildContext, sha: str) -> InstalledBuild | None:
    """The stored build of commit ``sha``, or None. Raises BuildFailed if git cannot read the commit."""
    return commit_build(context, sha).stored_build()


def build_commit(
    context: BuildContext, sha: str, shared: SharedBuilds | None = None, *, clean: bool = True
) -> Generator[BuildStep | Warned, None, InstalledBuild]:
    """Build commit ``sha``, except if its build is stored on the host; yield the progress. ``shared`` is a store of
    builds that several machines use: if it has the build, the build is fetched; otherwise, the new build is added to
    the store. Builds are fetched and added while the host does nothing else, so that no run is disturbed. If ``clean``
    is false, the build may be incremental; an incremental build is never added to the store.

    If a build with several parallel compile jobs fails, the build is repeated with a single compile job, because the
    failure may depend on the order of the compile jobs, or they may have used all memory. If a session was killed while
    it built the commit, and the build still runs on the host, this build is continued. If the generator is closed, the
    build and all its processes end. Raises BuildFailed if the commit cannot be checked out, configured, compiled or
    installed, or if its training (for profile-guided optimization) fails; JobLost if the host was restarted during the
    build; EnvironmentFailure for any other fault of the host.
    """
    began = time.monotonic()
    commit = commit_build(context, sha)
    built = commit.stored_build()
    if shared and not built and (yield from shared.fetch(context, commit.key)) and (built := commit.stored_build()):
        return replace(built, facts=replace(built.facts, shared=True, seconds=time.monotonic() - began))
    if not (built or clean):
        commit = replace(commit, incremental=True)
        built = commit.stored_build()
    built = built or (yield from commit.build())
    if shared and not built.facts.incremental:
        yield from shared.upload(context, built.facts)
    return built
