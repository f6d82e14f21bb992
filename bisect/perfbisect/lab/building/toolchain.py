"""Finds the compiler of a host, on which conditions of recipes and keys of builds depend. Configures ccache. Finds
which programs that a build needs are missing.

ccache is configured so that a clean build can use object files of earlier commits. The cache hits of each build are
counted. ccache is configured only by environment variables of the build, and by the file ``ccache.conf`` in the cache's
folder. Options make ccache ignore the system's configuration file, and a configuration file in the source tree, which
ccache 4.13 or later would read. The option ``sloppiness`` of ccache is not set: with its value ``pch_defines``, ccache
would identify a precompiled header by its preprocessed text, which has no ``#define``, so a commit that changes only a
``#define`` would get object files of another commit.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.core.domain.settings import Flags
from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.facts import DEB_SRC, SYSTEM, FactAnswers
from perfbisect.host.packages import Package, how_to_install_build_dependencies, missing_needs, require_programs
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.recipes.builder import Build, Builder, Variant

_IDENTITY = """\
for program do
    command -v -- "$program" >/dev/null && "$program" --version 2>/dev/null | head -n 1 || echo "no $program"
done
"""
# Prints the commands that the compiler would run. Not every architecture has both options.
_NATIVE = """\
for option in -march=native -mcpu=native; do "$1" "$option" '-###' -E -x c /dev/null; done 2>&1 </dev/null; :
"""
_RESOLVED = re.compile(r'(-m[\w.=+-]+)|"-(?:target-cpu|target-feature|tune-cpu)" "([^"]+)"')
# Prints one of the files below these folders that compiles something for the processor of the host.
MENTIONS = r"""
find "$@" -type f '(' -name '[Mm]akefile*' -o -name 'GNUmakefile' -o -name '*.mk' -o -name '*.make' -o -name '*.ninja' -o \
    -name '*.sh' -o -path '*/.cargo/config*' ')' -exec grep -lE -e '-m(arch|cpu|tune)=native|target-cpu=native' {} + 2>/dev/null |
    head -n 1
"""
NATIVE = re.compile(r"-m(?:arch|cpu|tune)=native|\btarget-cpu=native")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compilers and linker that make a build."""

    name: str  # "gcc" or "clang"
    version: str  # "12.2.0"
    identity: str  # first lines of the version texts of C compiler, C++ compiler and linker
    processor: str = ""  # a hash of the C compiler's options for native; "" if it has none


def toolchain(host: Host, variant: Variant) -> Toolchain:
    """The toolchain (compilers and linker) that a variant uses on a host. Raises EnvironmentFailure if the compiler of
    the variant is missing or broken."""
    require_programs(host, [variant.cc])
    try:
        macros = host.run([variant.cc, "-E", "-dM", "-x", "c", "/dev/null"]).stdout
    except CommandFailed as failure:
        text = f"{variant.cc} on host {host.name} does not preprocess an empty file: {failure}"
        raise EnvironmentFailure(text, "Check whether it is a C compiler.") from failure
    name, version = compiler_from_macros(macros)
    programs = dict.fromkeys((variant.cc, variant.cxx, "ld"))
    identity = host.script(_IDENTITY, *programs).stdout
    resolved = host.script(_NATIVE, variant.cc).stdout
    return Toolchain(name, version, identity, processor_hash(resolved))


def processor_hash(commands: str) -> str:
    """A hash of the processor options that ``-march=native`` means on a host, read from ``commands``, the commands that
    the compiler runs internally; "" if there are no such options.

    The hash does not depend on the sizes of caches, because these differ between the cores of a single processor.
    """
    words = {option or value for option, value in _RESOLVED.findall(commands)} - {"-march=native", "-mcpu=native"}
    return hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()[:16] if words else ""


def compiler_from_macros(macros: str) -> tuple[str, str]:
    """The name and version of a compiler, from its predefined macros. The macros of clang are looked for first, because
    clang also defines the macros of an old gcc."""
    defined = dict(re.findall(r"^#define (__\w+__) (\d+)$", macros, re.MULTILINE))
    for name, parts in (
        ("clang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")),
        ("gcc", ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")),
    ):
        if parts[0] in defined:
            return name, ".".join(defined.get(part, "0") for part in parts)
    return "", ""


COMPILERS = "PERFBISECT_COMPILERS"  # environment variable of a build: the folder that is first in its PATH
_NAMES = ("ccache", "cc", "c++", "gcc", "g++", "clang", "clang++", "c89", "c99")


# Build systems that compile each source by a separate command, so they need no script before ccache.
_SEPARATE = frozenset(("cmake", "meson", "cargo", "go"))


def compiler_wrapper_environment(host: Host, flags: Flags, variant: Variant, system: str) -> dict[str, str]:
    """The environment variables by which the build system ``system`` calls the script ``recorder/cc`` instead of
    ccache. If ``flags`` has options, the script also replaces every compiler, so that the options are always used.
    """
    if not flags.options and system in _SEPARATE:
        return {}
    script = Path(__file__).parent / "recorder" / "cc"
    names = (*_NAMES, PurePosixPath(variant.cc).name, PurePosixPath(variant.cxx).name)
    folder = upload.place_files(host, "compilers", dict.fromkeys(names if flags.options else ("ccache",), script))
    if not flags.options:
        return {COMPILERS: str(folder)}
    values = {"PERFBISECT_CFLAGS": flags.cflags, "PERFBISECT_CXXFLAGS": flags.cxxflags}
    return {COMPILERS: str(folder), **values, "PERFBISECT_LDFLAGS": flags.ldflags}


NEEDED = ("git", "ccache", "ld", "objcopy", "readelf")


def needed_compilers(build: Build, variant: Variant) -> list[str]:
    """The compilers that a build certainly uses. If a C++ compiler is named only by an environment variable of the
    build, it is left out, because the build may not use it.
    """
    commands = repr((build.configure, build.compile, build.install))
    return [variant.cc, *([variant.cxx] if "{cxx}" in commands else [])]


def missing_programs_and_needs(host: Host, programs: list[str], build: Build, variant: Variant) -> tuple[str, ...]:
    """The programs, headers and libraries that the host lacks, among ``programs`` and the recipe's list of needs."""
    flags = shlex.split(variant.cflags)
    c, cxx = (shlex.join([*shlex.split(compiler), *flags]) for compiler in (variant.cc, variant.cxx))
    return missing_needs(host, [*programs, *needed_compilers(build, variant), *build.needs], c, cxx)


def recipe_packages(build: Build) -> Mapping[str, Package]:
    """The distribution's packages that the recipe names, by the program, header or library in each package."""
    return {need: Package(named.debian, named.fedora) for need, named in build.packages.items()}


SYSTEM_FACTS = (SYSTEM, DEB_SRC)  # the facts of a host for ``how_to_build``


def build_dependencies_command(builder: Builder, answers: FactAnswers) -> str:
    """The command that installs all build dependencies that the distribution lists for its own package of the system;
    "" if the recipe does not name this package.
    """
    source = Package(builder.debian, builder.fedora)
    system = answers.get(SYSTEM) or ""
    return how_to_install_build_dependencies(source, system, has_source_lines=bool(answers.get(DEB_SRC)))


STATISTICS = "ccache.log"  # ccache's log of events, in the folder of a build
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_MISS = "cache_miss"
_REMOTE = ("remote_storage_hit", "secondary_storage_hit")  # the second name is used by ccache before 4.7
BUILT_IN = ("http", "redis", "redis+unix", "file")  # protocols that ccache supports without another program
HELPERS = (4, 13)  # the first version of ccache that has separate programs for other protocols
# Prints the counted events of the statistics log in the folder of a build, which may have any length.
EVENTS = f"grep -xE '{'|'.join((*_HITS, _MISS, *_REMOTE))}' ccache.log 2>/dev/null | sort | uniq -c"

# Replaces only the setting of the remote store in the ccache.conf of the folder $1; standard input is the new setting.
_SHARE = """\
mkdir -p "$1" && umask 077 && cd -- "$1" && touch ccache.conf && chmod 600 ccache.conf &&
{ grep -v -E '^(remote|secondary)_storage *=' ccache.conf; cat; } >ccache.conf.new || exit
mv -f ccache.conf.new ccache.conf
"""


NO_REMOTE = "none"  # in place of the address of a remote store: no remote store
REMOTE_ADVICE = (
    'Install ccache 4.7 or later, or set `ccache_remote` of this host in hosts.toml to another address or to "none".'
)

# Tries the remote store whose setting is standard input: compiles a file twice, each time with an empty local cache,
# and prints the ccache events of the second compilation.
_TRY = """\
umask 077 && scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT && cd -- "$scratch" && cat >ccache.conf || exit
echo 'int perfbisect;' >try.c
export CCACHE_CONFIGPATH="$scratch/ccache.conf" CCACHE_NOHASHDIR=1 CCACHE_NAMESPACE=perfbisect-try
CCACHE_DIR=$scratch/one CCACHE_RECACHE=1 ccache cc -c try.c -o try.o || exit
CCACHE_DIR=$scratch/two CCACHE_STATSLOG=$scratch/log ccache cc -c try.c -o try.o || exit
cat log
"""


def cache_environment(root: PurePosixPath, work: PurePosixPath, size: str, namespace: str = "") -> dict[str, str]:
    """The environment variables that configure ccache for a build in the folder ``work``. ``size`` is the largest size
    of the compiler cache, which all builds of the host share.

    ccache uses only object files that were compiled with the same ``namespace``.
    """
    return {
        "CCACHE_DIR": str(root / "ccache"),
        "CCACHE_CONFIGPATH": str(root / "ccache" / "ccache.conf"),
        "CCACHE_BASEDIR": str(work),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_MAXSIZE": size,
        "CCACHE_STATSLOG": str(work / STATISTICS),
    } | ({"CCACHE_NAMESPACE": namespace} if namespace else {})


def cache_namespace(host: Host, processor: str) -> str:
    """A namespace of ccache for ``processor``, so that machines that share a cache use only code for their own
    processor; "" if ccache itself separates code by processor.

    Before version 4.12, ccache hashes only the text ``-march=native``, although this option gives different code on
    different processors. The option may be in the build files of a tree.
    """
    return processor if _ccache_version(host) < (4, 12) else ""


def share_cache(host: Host, remote: str) -> None:
    """Configure ccache on this host to use the remote store at the address ``remote``; "" for no remote store.

    The address is written to ccache's configuration file, which only the user can read, because the address may contain
    a password, and environment variables and commands of builds are logged.
    """
    setting = ""
    if remote not in ("", NO_REMOTE):
        version = _ccache_version(host)
        if reason := why_cache_unfit(version, remote):
            raise EnvironmentFailure(f"ccache on host {host.name} {reason}", REMOTE_ADVICE)
        setting = f"{_remote_key(version)} = {remote}\n"
    host.script(_SHARE, host.root / "ccache", stdin=setting)


def why_cache_unfit(version: tuple[int, int], remote: str) -> str:
    """The reason why ccache of version ``version`` cannot use the remote store, as words that continue a sentence after
    "ccache"; "" if ccache can use the store."""
    number, scheme = ".".join(map(str, version)), remote.partition(":")[0]
    if version < (4, 5):  # ccache 4.5 is the first version with namespaces
        return f"is too old for a remote store: its version is {number}"
    if scheme not in BUILT_IN and version < HELPERS:
        return f"has version {number}, but {scheme}:// needs version {'.'.join(map(str, HELPERS))} or newer"
    return ""


def _remote_key(version: tuple[int, int]) -> str:
    return "remote_storage" if version >= (4, 7) else "secondary_storage"


def remote_cache_error(host: Host, remote: str) -> str:
    """The reason why ccache on a host cannot use the remote store; "" if it can. As a test, a file is compiled twice,
    each time with an empty local cache: the first time ccache writes to the remote store, the second time it reads from
    the remote store.

    The test does not use the host's usual local cache. Each call stores the same few hundred bytes in the remote store.
    """
    version = _ccache_version(host)
    if reason := why_cache_unfit(version, remote):
        return f"ccache {reason}"
    tried = host.script(_TRY, stdin=f"{_remote_key(version)} = {remote}\n", check=False, timeout=120)
    if not tried.ok:
        return f"ccache cannot compile a file with this store: {next(iter(tried.stderr.splitlines()), 'ccache printed no reason')}"
    if "_storage_hit" not in tried.stdout:
        trouble = "_storage_error" in tried.stdout or "_storage_timeout" in tried.stdout
        return "ccache cannot reach the store" if trouble else "ccache does not find its own objects in the store"
    return ""


def _ccache_version(host: Host) -> tuple[int, int]:
    version = re.search(r"(\d+)\.(\d+)", host.run(["ccache", "--version"]).stdout)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def cache_statistics(log: str) -> tuple[int, int, int]:
    """The numbers of cache hits, of misses, and of hits from the remote store. Each line of ``log`` has an event of
    ccache's statistics log, after the number of times it occurred.
    """
    events = {event: int(number) for number, event in re.findall(r"^ *(\d{1,18}) (\w+)$", log, re.MULTILINE)}
    hits, remote = (sum(events.get(hit, 0) for hit in names) for names in (_HITS, _REMOTE))
    return hits, events.get(_MISS, 0), min(remote, hits)
