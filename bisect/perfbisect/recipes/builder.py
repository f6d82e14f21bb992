"""The shape of a builder recipe, ``builders/NAME/builder.toml``.

Commands are argument lists. ``{placeholders}`` are filled by the tool; those allowed are listed in PLACEHOLDERS.
A shell is used only where the recipe itself names one, as in ``["sh", "-c", "…"]``.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

Argv = Annotated[list[str], msgspec.Meta(min_length=1, description='a command: ["program", "argument", …]')]
Variable = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="named as an environment variable is")
]
Need = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[\w.+/-]+\Z", description='a program, a header such as "zlib.h" or a library such as "zlib.pc"'
    ),
]
Seconds = Annotated[float, msgspec.Meta(gt=0, description="a number of seconds above 0")]

Setting = str | int | float | bool
Weight = Annotated[float, msgspec.Meta(gt=0, description="a number above 0; 1 is an ordinary commit's")]

VERSION_PLACEHOLDERS = frozenset({
    "source",  # the checkout, without the recipe's ignored paths
    "recipe",  # the recipe's folder, the files of the recipes that it extends included
    "commit",
})  # fmt: skip
BUILD_PLACEHOLDERS = VERSION_PLACEHOLDERS | {
    "build",  # an empty folder, the working directory of configure, compile and install
    "prefix",  # where install puts the result
    "cc", "cxx", "cflags", "ldflags",  # of the variant
    "jobs",  # parallel jobs on this host
    "version",  # of the tree being built, "" when the recipe cannot tell
}  # fmt: skip
SIZE_PLACEHOLDERS = frozenset({
    "memory",  # MiB of the host
    "cache",  # MiB that a server may take for its own cache of the data
    "cores",  # that the server may use
})  # fmt: skip
SERVER_PLACEHOLDERS = SIZE_PLACEHOLDERS | {
    "prefix", "recipe", "commit", "version", "jobs",
    "data", "socket", "port", "pidfile", "log",  # of this server and its copy of the dataset
    "config",  # the recipe's configuration file, filled in
}  # fmt: skip
INSTALLED_PLACEHOLDERS = frozenset({"prefix", "recipe"})
CONFIG_PLACEHOLDERS = SERVER_PLACEHOLDERS | {"settings"}  # one line "name = value" for each of the recipe's settings
COMMAND_PLACEHOLDERS = SIZE_PLACEHOLDERS | {
    "prefix", "recipe", "commit", "version", "jobs",
    "data",  # this visit's copy of the dataset
    "suite",  # the workload's folder, with all that lies beside its suite.toml
    "threads", "time", "warmup",  # of the workload
    "socket", "port",  # of the server, if there is one
}  # fmt: skip
PLACEHOLDERS = BUILD_PLACEHOLDERS | CONFIG_PLACEHOLDERS | COMMAND_PLACEHOLDERS


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One set of compiler settings."""

    summary: str = ""
    cc: str = "gcc"
    cxx: str = "g++"
    cflags: str = ""
    ldflags: str = ""


class Packages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The packages that bring a thing which a build needs."""

    debian: str = ""  # on Debian and Ubuntu
    fedora: str = ""  # on Fedora, RHEL and their kin


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a checkout becomes an installed system."""

    configure: list[Argv] = []
    compile: list[Argv]
    install: list[Argv]
    # Paths below {prefix} whose loadable sections say whether two builds are the same; without any, no two are.
    artifacts: list[str]
    env: dict[Variable, str] = {}
    # What must be on the host, beyond git and ccache: programs, headers ("openssl/ssl.h"), libraries that pkg-config
    # knows ("libzstd.pc").
    needs: list[Need] = []
    packages: dict[str, Packages] = {}  # of those for which our own table does not tell them
    timeout: Seconds = 7200.0  # for the whole build


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a server is initialised, started, found ready, and stopped. Absent for an embedded library.

    Data is loaded by: initialise, start, create, the workload's own loading, settle, stop. A visit is: start on a copy
    of that, runs, stop.

    perf counts the process that ``start`` becomes and all its descendants, those that it starts later included; or of
    these descendants only the later ones, where each connection has a process of its own.
    """

    initialise: list[Argv]
    start: Argv  # stays in the foreground
    ready: Argv  # ends with 0 once the server answers
    stop: list[str] = []  # empty: SIGTERM
    create: list[Argv] = []  # after the first start: users, databases
    settle: list[Argv] = []  # once the data is loaded: whatever would otherwise be done later, at any time
    config: str = ""  # file of the recipe's folder that is filled in for each start: {config} is where it then is
    settings: dict[str, Setting] = {}  # lines of that file
    env: dict[Variable, str] = {}
    ready_timeout: Seconds = 60.0
    stop_timeout: Seconds = 60.0
    refuses_root: bool = False
    perf_scope: Literal["server", "connections"] = "server"
    sysbench: dict[str, str] = {}  # driver options: pgsql-host = "{socket}" …


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What makes loaded data reusable by other builds."""

    format: str = "1"  # the on-disk format; part of the dataset's key
    format_command: list[str] = []  # prints what is part of it, too; run with the build, in an empty visit


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A condition on the tree or the toolchain, and what it changes (merged over the recipe)."""

    version: str = ""  # ">=8.0.30", ">=3.8,<3.30"
    file: str = ""  # exists in the tree
    missing: str = ""  # does not exist in the tree
    compiler: str = ""  # "gcc>=12"
    change: dict[str, object] = {}  # keys of the recipe: {"build": {"configure": […]}}


class Builder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One system: where its source is and how a commit of it is built and run."""

    filled_in: ClassVar[frozenset[str]] = frozenset({"name", "folder", "inherited", "home"})  # by the reader

    name: str = ""  # the folder's name
    folder: str = ""  # absolute path of the recipe's folder
    inherited: list[str] = []  # folders of the recipes that it extends, nearest first
    home: str = ""  # what its repository and its work folder on a host are called, if not as the recipe is
    summary: str
    extends: str = ""
    repository: str = ""
    release_tags: list[str] = []  # "version-{version}", "REL_{version:_}" (dots written as _)
    version: list[str] = []  # prints the version, run in the checkout: ["cat", "VERSION"]
    installed_version: list[str] = []  # prints that of an installed system: ["{prefix}/bin/postgres", "--version"]
    ignore: list[str] = []  # paths that cannot change the speed, git's glob rules
    suspects: dict[str, Weight] = {}  # path (git's glob rules) → how much likelier a commit that touches it is
    driver: str  # what workloads talk to: "sqlite", "mysql", "pgsql", …
    library: str = ""  # of an embedded system: path below {prefix} that the workload loads
    variant: str = "o2nofp"  # the default one
    variants: dict[str, Variant] = {}
    build: Build | None = None  # without it only prebuilt binaries can be measured
    server: Server | None = None
    dataset: Dataset = Dataset()
    when: list[When] = []

    @property
    def place(self) -> str:
        """The name of its repository and of its work folder on a host."""
        return self.home or self.name
