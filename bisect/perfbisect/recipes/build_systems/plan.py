"""What a build system is given, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Argvs = tuple[tuple[str, ...], ...]

# Nothing is fetched during a build: what a build gets from the network differs from day to day.
OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "ftp_proxy": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
    "GIT_ALLOW_PROTOCOL": "file",
    "PIP_NO_INDEX": "1",
    "npm_config_offline": "true",
}

# Runs its arguments as an installation below the folder $0, and nowhere else: what would be written to other folders of
# the system goes to a stage, and is removed. A tree that knows no DESTDIR installs to $0 itself.
STAGED = """\
stage=$PWD/.stage
DESTDIR=$stage "$@" || exit
if [ -d "$stage$0" ]; then mkdir -p "$0" && cp -al "$stage$0/." "$0"; fi
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a recipe says of its build, beside commands."""

    options: tuple[str, ...]  # of the configure step
    requested: tuple[str, ...]  # those of them that the user gave: one that the tree does not know is an error
    targets: tuple[str, ...]  # to build; none: those that install ``programs``, else all
    programs: tuple[str, ...]  # paths below {prefix}
    library: str  # the same of an embedded system, or ""
    paths: frozenset[str]  # in the tree; files that systems are known by are among them
    in_place: bool  # the result is the copy of the tree in {prefix} in which it is built, not what is installed there

    @property
    def source(self) -> str:
        """The folder with the tree."""
        return "{prefix}" if self.in_place else "{source}"

    @property
    def copied(self) -> Argvs:
        """The command that makes the tree's copy, where it is built in one."""
        return (("cp", "-a", "{source}/.", "{prefix}"),) if self.in_place else ()


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of a build, as in a recipe."""

    configure: Argvs
    compile: Argvs
    install: Argvs
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
