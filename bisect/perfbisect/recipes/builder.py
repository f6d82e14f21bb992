"""The schema of a builder recipe, ``builders/NAME/builder.toml``.

Commands are argument lists. perfbisect replaces the ``{placeholders}`` in commands; PLACEHOLDERS lists all
placeholders. A command runs without a shell, except if its words start a shell, as in ``["sh", "-c", "…"]``.
"""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from perfbisect.core.domain.settings import USUAL_VARIANT, Flags
from perfbisect.recipes.toml import text_constraint

Argv = Annotated[list[str], Meta(min_length=1, description='a command: ["program", "argument", …]')]
Change = Annotated[dict[str, object], Meta(min_length=1, description='what is changed: {"build": {"configure": […]}}')]
Variable = Annotated[str, text_constraint(r"^[A-Za-z_][A-Za-z0-9_]*\Z", "a name of an environment variable")]
Need = Annotated[
    str, text_constraint(r"^[\w.+/-]+\Z", 'a program, a header such as "zlib.h" or a library such as "zlib.pc"')
]
DebianName = Annotated[str, text_constraint(r"^([a-z0-9][a-z0-9+.-]+)?\Z", 'a package of Debian such as "libpq-dev"')]
Client = Annotated[str, text_constraint(r"^[\w.+-]+( [\w.+-]+)*\Z", "the name of a program, its others behind spaces")]
FedoraName = Annotated[
    str, text_constraint(r"^([A-Za-z0-9][\w+.-]*)?\Z", 'a package of Fedora such as "postgresql-server"')
]
Folder = Annotated[str, text_constraint(r"^(/[\w.+-]+)*\Z", 'an absolute path such as "/usr"')]
Below = Annotated[
    str, text_constraint(r"(?s)^(?!/|(.*/)?\.\.(/|\Z))", "a path below {prefix}, without .. or a leading /")
]
OfTree = Annotated[
    str, text_constraint(r"^(?!\.{0,2}/)", "a path from the top of the source tree, without a leading / or ./")
]
Ignored = Annotated[
    str,
    text_constraint(
        r"(?s)^(?![/!:]|\./).*[^/]\Z",
        'a path from the top of the source tree: "doc/**" for a folder, "**/*.md" at any depth',
    ),
]
ReleaseTag = Annotated[
    str,
    text_constraint(
        r"\{version(:_)?\}",
        'a name with {version}, or with {version:_} for one with _ instead of dots: "REL_{version:_}"',
    ),
]
CONDITION = r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*"
VersionRule = Annotated[
    str,
    text_constraint(
        rf"^({CONDITION}(,{CONDITION})*)?\Z",
        'one or more of >=, <=, ==, !=, >, < with a number, separated by commas: ">=3.8,<3.30"',
    ),
]
ArchiveName = Annotated[str, text_constraint(r"^[a-z][a-z0-9_-]*\Z", 'a name such as "boost"')]
Sha256 = Annotated[str, text_constraint(r"^[0-9a-f]{64}\Z", "64 hexadecimal digits, as sha256sum prints them")]
Tarball = Annotated[
    str,
    text_constraint(
        r"^https?://\S+/[\w.{}:+~-]+\.(tar(\.(gz|bz2|xz|zst))?|tgz)\Z",
        'the address of a tarball: "https://example.org/{version}/lib_{version:_}.tar.gz"',
    ),
]
COMPILER = rf"\s*(gcc|clang)\s*((?:{CONDITION}(?:,{CONDITION})*)?)"
CompilerRule = Annotated[
    str, text_constraint(rf"^({COMPILER})?\Z", 'gcc or clang, and of which version: "gcc>=12", "clang"')
]
LONGEST = 1e9  # largest number of seconds in recipes; much longer times overflow in system calls
Seconds = Annotated[float, Meta(gt=0, le=LONGEST, description="a number of seconds above 0")]

Setting = str | int | float | bool
WEIGHTS = (1e-6, 1e6)
Weight = Annotated[
    float, Meta(ge=WEIGHTS[0], le=WEIGHTS[1], description="a number from 0.000001 to 1000000; an ordinary commit has 1")
]

VERSION_PLACEHOLDERS = frozenset({
    "source",  # the checkout, without the recipe's ignored paths
    "recipe",  # the recipe's folder, with the files of the recipes that the recipe extends
    "commit",
})  # fmt: skip
BUILD_PLACEHOLDERS = VERSION_PLACEHOLDERS | {
    "build",  # an empty folder, the working directory of configure, compile and install
    "prefix",  # where install puts the result
    "cc", "cxx",  # of the variant, behind ccache
    "compiler", "cxx_compiler",  # of the variant, without ccache
    "cflags", "ldflags",  # of the variant
    "jobs",  # parallel jobs on this host
    "version",  # of the tree being built, "" when the recipe does not define it
}  # fmt: skip
OF_ARCHIVES = "archives.NAME"  # in a build, for each archive of the recipe: the folder of its unpacked content
SIZE_PLACEHOLDERS = frozenset({
    "memory",  # MiB of the host
    "cache",  # MiB that a server may use for its own cache of the data
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
    "suite",  # the workload's folder, with all files beside its suite.toml
    "threads", "time", "warmup",  # of the workload
    "socket", "port",  # of the server, if the builder has one
}  # fmt: skip
MEASURED = "*"  # as the value of ``train``: the measured workloads
PLACEHOLDERS = BUILD_PLACEHOLDERS | {OF_ARCHIVES} | CONFIG_PLACEHOLDERS | COMMAND_PLACEHOLDERS


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One set of compiler settings."""

    whole: ClassVar[bool] = True  # empty keys are printed, too, because they override keys of extended recipes

    summary: str = ""
    cc: str = "gcc"
    cxx: str = "g++"
    cflags: str = ""
    ldflags: str = ""
    # Workloads that an instrumented build runs, so that its execution counts optimise the final build; names as for
    # --workload. "*": the measured workloads.
    train: str = ""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An additional configuration of a server. A comparison can measure a build in several configurations."""

    summary: str = ""
    settings: dict[str, Setting] = {}  # override the settings of [server]
    file: str = ""  # file of the recipe's folder that is appended to the server's file, with the same placeholders


class Packages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The names of the distribution packages that contain a program, header or library that a build needs."""

    debian: str = ""  # on Debian and Ubuntu
    fedora: str = ""  # on Fedora, RHEL and their derivatives


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a checkout is built and installed: by commands in the recipe, or by a build system."""

    # The build system. "": detected in the trees; if both ends of the range have the same system, all commits use it.
    system: Literal["", "cmake", "meson", "autotools", "make", "cargo", "go"] = ""
    options: list[str] = []  # options of the build system's configure step
    targets: list[str] = []  # targets to build; by default those that install the recipe's programs, or all
    in_place: bool = False  # whether programs are used where they were built: in a copy of the tree in {prefix}
    # Commands of a build that uses no build system.
    configure: list[Argv] = []
    compile: list[Argv] = []
    install: list[Argv] = []
    then: list[Argv] = []  # after all other commands, and after a build system: for instance to build a benchmark
    # Paths below {prefix}, by default of the recipe's programs or library. Two builds are equal if the loadable
    # sections of these files are equal. Without artifacts, no two builds are equal.
    artifacts: list[Below] = []
    env: dict[Variable, str] = {}
    # Needs on the host, beside git and ccache: programs, headers ("openssl/ssl.h"), libraries for pkg-config
    # ("libzstd.pc").
    needs: list[Need] = []
    packages: dict[str, Packages] = {}  # need → packages, for needs that are not in perfbisect's table
    timeout: Seconds = 7200.0  # longest time of the whole build


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The commands that initialise a server, start it, ask whether it is ready, and stop it. A recipe for an embedded
    library has no such section.

    The steps of loading data are: initialise, start, create, the workload's loading, settle, stop. A visit starts the
    server on a copy of the loaded data, makes one or more runs, and stops the server.

    ``perf_scope`` says which processes perf counts: "server", the process of ``start`` and all its descendants,
    including descendants that start later; or "connections", only descendants that start later, for servers with a
    process for each connection.
    """

    initialise: list[Argv]
    start: Argv  # starts the server, and must stay in the foreground
    ready: Argv  # its exit status is 0 if the server answers
    stop: list[str] = []  # stops the server; empty: SIGTERM
    create: list[Argv] = []  # after the first start: commands that create users and databases
    settle: list[Argv] = []  # after the data is loaded: work that the server would otherwise do later, at any time
    # Programs that connect to the server. If an installed system lacks a program or its libraries, the host's is used.
    clients: list[Client] = []
    config: str = ""  # file of the recipe's folder, filled in for each start; {config} is the path of the result
    settings: dict[str, Setting] = {}  # settings in ``config``, one in each line: {settings}
    # Settings that a user's configuration must not contain, because the recipe sets them. Each is the first word of a
    # line; - and _ are equal. If =/ follows the word, only a line whose value is a path is forbidden.
    reserved: list[str] = []
    env: dict[Variable, str] = {}
    ready_timeout: Seconds = 60.0
    stop_timeout: Seconds = 60.0
    refuses_root: bool = False
    perf_scope: Literal["server", "connections"] = "server"
    sysbench: dict[str, str] = {}  # options of sysbench's driver, such as pgsql-host = "{socket}"


class DataFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The on-disk format of loaded data. Builds with the same format share one dataset."""

    format: str = "1"  # the on-disk format; part of the dataset's key
    format_command: list[str] = []  # command of the build that prints a second part of the format; run without data


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A condition (on the files of the commit or on the compiler), and settings that are merged into the recipe if the
    condition is true.
    """

    version: VersionRule = ""  # condition on the tree's version, such as ">=8.0.30" or ">=3.8,<3.30"
    file: OfTree = ""  # path that must exist in the tree
    missing: OfTree = ""  # path that must not exist in the tree
    compiler: CompilerRule = ""  # condition on the compiler, such as "gcc>=12"
    change: Change  # keys of the recipe that change: {"build": {"configure": […]}}


class PatchFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A patch in the recipe's folder. Before a commit is built, the patch is applied to the source, if the patch is
    meant for the commit's version and applies."""

    file: str  # path of the patch in the recipe's folder, such as "patches/gcc-12.patch"
    version: VersionRule = ""  # condition on the version of the trees to patch, such as "<8.0.20"; by default all trees


class Archive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tarball that a build needs in addition to the git repository, in the version that the source tree names. In
    commands, {archives.NAME} is the folder with the unpacked tarball.
    """

    address: Tarball  # {version}, {version:_} (dots written as _)
    file: OfTree  # file that names the version; a tree without it needs no archive
    pattern: str  # the version in ``file``: a regular expression with one group; _ in the match means a dot
    unless: OfTree = ""  # a tree that contains this file needs no archive
    sha256: dict[str, Sha256]  # version → checksum of its archive


class Builder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The recipe of a system to measure: where its source is, and how a commit is built and run."""

    # Fields that the reader of recipes sets, and that a recipe must not have.
    filled_in: ClassVar[frozenset[str]] = frozenset({
        "name", "folder", "inherited", "home", "requested", "started", "chosen", "flags", "addition",
    })  # fmt: skip

    name: str = ""  # the folder's name
    folder: str = ""  # absolute path of the recipe's folder
    inherited: list[str] = []  # folders of the recipes that it extends, nearest first
    home: str = ""  # name of its repository and its work folder on a host; "": the recipe's name
    requested: list[str] = []  # options of the configure step that the user gave; build.options has them, too
    started: list[str] = []  # programs that a command of the user starts: paths below {prefix}, like ``programs``
    chosen: list[str] = []  # files of the build that the user chose; each replaces the program with its file name
    flags: Flags = Flags()  # flags of the user, in addition to flags of the variant and the tree
    addition: str = ""  # end of its server's configuration file, with placeholders: see ServerConfig
    summary: str
    extends: str = ""
    repository: str = ""
    release_tags: list[ReleaseTag] = []  # forms of tags: "version-{version}", "REL_{version:_}" (dots written as _)
    version: list[str] = []  # a command that prints the version, run in the checkout: ["cat", "VERSION"]
    # command that prints the version of an installed system: ["{prefix}/bin/postgres", "--version"]
    installed_version: list[str] = []
    ignore: list[Ignored] = []  # paths that cannot change the speed, git's glob rules
    suspects: dict[str, Weight] = {}  # path (git's glob rules) → factor of the prior of commits that touch the path
    # The system's package (source or binary) in Debian and Ubuntu; builds need the build dependencies of this package.
    debian: DebianName = ""
    fedora: FedoraName = ""  # package of Fedora, RHEL and their derivatives
    driver: str  # client protocol of workloads: "sqlite", "mysql", "pgsql", …
    # If the hosts have the system installed: its folder on every host, such as "/usr". Nothing is built, and hosts are
    # compared in place of builds.
    installed: Folder = ""
    library: Below = ""  # of an embedded system: path below {prefix} of the library that the workload loads
    programs: list[Below] = []  # paths below {prefix} of the programs that the recipe runs
    variant: str = USUAL_VARIANT
    variants: dict[str, Variant] = {}
    configs: dict[str, Config] = {}  # additions to the server's configuration, by NAME in `bisect compare REV REV+NAME`
    build: Build | None = Build()  # None if nothing is built
    server: Server | None = None
    dataset: DataFormat = DataFormat()
    when: list[When] = []
    patches: list[PatchFile] = []
    archives: dict[ArchiveName, Archive] = {}

    @property
    def work_name(self) -> str:
        """The name of two folders of the builder on a host: its git repository and its work folder."""
        return self.home or self.name


_O2 = "-O2 -fno-omit-frame-pointer"
_VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "o2nofp": (f"{_O2} (frame pointers are kept, so that perf sees callers)", {"cflags": _O2}),
    # The speed of a hot loop may depend on its start address. (Clang does not have -falign-jumps, and only warns.)
    "o2nofp-aligned": (
        "as o2nofp, with functions, loops and jumps aligned",
        {"cflags": f"{_O2} -falign-functions=64 -falign-loops=64 -falign-jumps=32"},
    ),
    "lto": (
        "as o2nofp, optimised across files at link time", {"cflags": f"{_O2} -flto=auto", "ldflags": "-flto=auto"},
    ),
    "native": ("as o2nofp, for the CPU of the host that builds", {"cflags": f"{_O2} -march=native"}),
    "pgo": ("as o2nofp, optimised with a profile of the measured workloads", {"cflags": _O2, "train": MEASURED}),
    "relwithdebinfo": (
        "as o2nofp, with debug information and without assertions",
        {"cflags": "-O2 -g -DNDEBUG -fno-omit-frame-pointer"},
    ),
}  # fmt: skip
SHARED = {name: {"summary": summary, **flags} for name, (summary, flags) in _VARIANTS.items()}
