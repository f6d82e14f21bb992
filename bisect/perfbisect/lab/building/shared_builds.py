"""Shares finished builds between machines by a store. Before a host builds a commit, perfbisect searches the store for
the build; after the host has built the commit, perfbisect copies the build to the store.

The machine on which perfbisect runs transfers the archives of builds, so hosts need no access to the store. A host
checks an archive before unpacking. If the check fails, the archive is removed from the store, and the host builds the
commit. If the store does not answer, perfbisect does not use the store for some minutes. A build that the store already
has is not copied to the store again.
"""

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.facts import is_disk_nearly_full
from perfbisect.host.packages import missing_programs
from perfbisect.host.protocol import Host, disk_full_error
from perfbisect.lab.building import build_store
from perfbisect.lab.building.build_store import CHUNK, FUNCTIONS, LONG, REFUSED, UNPACK, send_archive
from perfbisect.lab.building.log_parser import FETCH, SHARE, BuildStep
from perfbisect.lab.building.plan import BuildContext, is_processor_specific
from perfbisect.lab.building.shared_store import (
    Manifest,
    SharedBuildRefused,
    Store,
    header_lines,
    object_name,
    read_header,
)
from perfbisect.lab.building.toolchain import MENTIONS
from perfbisect.masking import mask_credentials

PAUSE = 600.0  # seconds for which a store that has failed is not asked
MB = 10**6

_LEAVING = """\
leaving() { # the first symbolic link below the folder $1 that leads out of it
    find "$1" -type l -exec sh -c 'top=$(realpath -- "$0") && for link do
        case $(realpath -m -- "$link") in "$top"/*) ;; *) printf "%s\\n" "$link"; exit;; esac; done' "$1" {} + | head -n 1
}
"""
_LACKING = """\
lacking() { # libraries that programs below the folder $1 load, and that neither it nor the system has
    find "$1" -type f '(' -perm -u+x -o -name '*.so' -o -name '*.so.*' ')' -exec sh -c 'for file do ldd "$file"; done' sh {} + \\
        2>/dev/null | sed -n 's/^[[:space:]]*\\([^ ]*\\) => not found$/\\1/p' | sort -u | while IFS= read -r library; do
        [ -n "$(find "$1" -name "$library" -print -quit)" ] || printf '%s\\n' "$library"; done
}
"""
# Prints what a build depends on besides its key. It names no package, so hosts of one distribution share builds.
_SURROUNDINGS = """\
uname -m
[ ! -r /etc/os-release ] || ( . /etc/os-release && printf '%s %s\\n' "$ID" "$VERSION_ID" )
getconf GNU_LIBC_VERSION 2>/dev/null || :
"""
# $1 is the folder of a build, $2 where its builder installs. Leaves $1.part/archive, and prints its compression, size and hash,
# whether the build contains the path $2, and the libraries that it lacks. Equal folders give equal archives.
_PACK = f"""\
{UNPACK}{_LEAVING}{_LACKING}
cd -- "$1" && rm -rf "$1.part" && mkdir "$1.part" || exit
found=$(odd prefix)$(leaving prefix)
[ -z "$found" ] || refuse "$found is a link that leads out of the installation, or no file"
[ ! -e links/plan ] || links=./links
if command -v zstd >/dev/null; then way=zstd through='zstd -q -T0'; else way=gzip through='gzip -n'; fi
LC_ALL=C tar -c --use-compress-program="$through" --sort=name --mtime=@315532800 --owner=0 --group=0 --numeric-owner --mode=ug-s \\
    --format=gnu -f "$1.part/archive" ./build.json ./log ./prefix $links || exit
echo "$way" && stat -c %s "$1.part/archive" && sha256sum <"$1.part/archive" | cut -d ' ' -f 1 || exit
if grep -rlqF -e "$2" prefix 2>/dev/null || find prefix -type l -printf '%l\\n' | grep -qF -e "$2"; then echo rooted; else echo free; fi
lacking prefix
"""
# $1 is the folder of the build, $2 the archive's hash, $3 the program that uncompresses, $4 the key, $5 the root folder where it
# was built, $6 the root folder here; then libraries that the build may lack. Prints the reason if the build cannot be
# used.
_UNPACK_BUILD = f"""\
{FUNCTIONS}{UNPACK}{_LEAVING}{_LACKING}
place=$1 sum=$2 through=--use-compress-program=$3 key=$4 from=$5 root=$6
shift 6
cd -- "$place.part" 2>/dev/null || {{ [ -d "$place" ]; exit; }} # done already
printf '%s  archive\\n' "$sum" | sha256sum -c --status - 2>/dev/null || refuse 'it is not what its manifest has the hash of'
LC_ALL=C tar -t "$through" --quoting-style=escape -f archive >names 2>said || refuse "it is no archive: $(head -n 1 said)"
LC_ALL=C tar -tv "$through" --quoting-style=escape -f archive >entries 2>said || refuse "it is no archive: $(head -n 1 said)"
name=$(grep -E -m 1 -e '^/' -e '(^|/)\\.\\.(/|$)' names) && refuse "it has a name that leads out of its folder: $name"
name=$(grep -vE -m 1 -e '^\\./(build\\.json|log|prefix/?|links/?)$' -e '^\\./(prefix|links)/' names) && refuse "it has what no build has: $name"
name=$(grep -E -m 1 -e '^[^-dlh]' entries) && refuse "it has a device, a FIFO or a socket: $name"
name=$(grep -E -m 1 -e '^(...|......)[sS]' entries) && refuse "it has a program that changes the user: $name"
rm -rf build && mkdir build || exit
unpack build "$through" <archive || exit 1
chmod -R u+rwX build || exit
name=$(odd build) && [ -z "$name" ] || refuse "it has a device, a FIFO or a socket: $name"
name=$(leaving build) && [ -z "$name" ] || refuse "it has a link that leads out of its folder: $name"
[ -d build/prefix ] && [ ! -L build/prefix ] && [ -f build/build.json ] && [ -f build/log ] || refuse 'it has no prefix, record or log'
grep -qF -e "\\"key\\":\\"$key\\"" build/build.json || refuse 'it is another build than its manifest says'
for library in $(lacking build/prefix); do
    for known do [ "$known" != "$library" ] || continue 2; done
    echo "it needs $library, which is not installed there"; exit 1
done
[ "$from" = "$root" ] || [ ! -d build/links ] || [ -e build/links/root ] || printf %s "$from" >build/links/root
sync -f build && record "$PWD/build" && rm -rf "$place" && mv -T -- build "$place" && rm -rf "$place.part"
"""


class SharedBuilds:
    """The shared builds in the store at ``address``. Builds are signed with ``secret``, and builds without a valid
    signature are refused. If ``secret`` is "", builds are not signed, and no signature is required.
    """

    def __init__(self, address: str, secret: bytes = b"", clock: Callable[[], float] = time.monotonic) -> None:
        self.address = mask_credentials(address)
        self.signed = bool(secret)  # whether only builds that are signed with the secret are used
        self._address, self._secret, self._clock = address, secret, clock
        self._quiet: dict[str, float] = {}  # "read" or "written" → end of the pause after a failure
        self._said: set[str] = set()
        self._surroundings: dict[str, str] = {}  # host → what its builds depend on besides their keys

    def fetch(self, context: BuildContext, key: str) -> Generator[BuildStep | Warned, None, bool]:
        """Copy the build with the key ``key`` from the store to the host of ``context``; returns whether the host now
        has the build."""
        host, target = context.host, build_store.build_folder(context.host, key)
        for name in self._store_names(context, key):
            if not self._may("read"):
                return False
            try:
                with self._store.read(name) as source:
                    manifest = read_header(source, name, self._secret)
                    yield BuildStep(FETCH)
                    if missing_programs(host, ["tar", manifest.way]):
                        raise EnvironmentFailure(
                            f"{manifest.way}, which unpacks the build, is not installed on the host"
                        )
                    for done in send_archive(host, target, source.read, manifest.size):
                        yield BuildStep(FETCH, done // MB, manifest.size // MB)
                _unpack(host, key, manifest)
                return True
            except FileNotFoundError:
                continue
            except OSError as trouble:
                yield from self._suspend("read", trouble)
            except SharedBuildRefused as reason:
                with suppress(OSError):
                    self._store.remove(name)
                yield Warned(
                    f"a shared build is not trusted, so host {host.name} builds it again: {reason}",
                    f"The build is {name} in {self.address}. Check who can write there, and whether a proxy changes the data.",
                )
            except EnvironmentFailure as reason:
                why = _first(reason.output if isinstance(reason, CommandFailed) else str(reason))
                if is_disk_nearly_full(host):  # a full disk also prevents a build on the host
                    raise disk_full_error(host.name, f"a shared build cannot be unpacked: {why}") from reason
                text = f"shared builds are not used on host {host.name}: {why}"
                yield from self._once(text, "The host builds for itself.")
            host.run(["rm", "-rf", "--", f"{target}.part"], timeout=LONG)
        return False

    def upload(self, context: BuildContext, facts: BuildFacts) -> Generator[BuildStep | Warned]:
        """Copy a build to the store, unless the store already has the build."""
        host, build_folder = context.host, build_store.build_folder(context.host, facts.key)
        if not self._may("written"):
            return
        try:
            if any(self._store.has(name) for name in self._store_names(context, facts.key)):
                return
            yield BuildStep(SHARE)
            manifest = self._packed(context, facts)
            yield BuildStep(SHARE, 0, manifest.size // MB)
            with host.stream(["cat", "--", f"{build_folder}.part/archive"]) as source:
                parts = chain([header_lines(manifest, self._secret)], iter(lambda: source.recv(CHUNK), b""))
                self._store.write(manifest.name, parts)
        except OSError as trouble:
            yield from self._suspend("written", trouble)
        except EnvironmentFailure as trouble:  # packing failed: the build itself can be used
            yield from self._once(f"a build on host {host.name} cannot be shared: {trouble}", trouble.advice)
        finally:
            with suppress(EnvironmentFailure):
                host.run(["rm", "-rf", "--", f"{build_folder}.part"], timeout=LONG)

    def check_access(self) -> None:
        """Test the access to the store: write an object, read the object, and remove the object. Raises OSError if one
        of these operations fails."""
        name, content = f"trial-{secrets.token_hex(8)}", b"perfbisect"
        self._store.write(name, [content])
        with self._store.read(name) as source:
            read_back = source.read(len(content))
        self._store.remove(name)
        if read_back != content:
            raise OSError("the bytes that are read differ from the bytes that were written")

    def _store_names(self, context: BuildContext, key: str) -> tuple[str, str]:
        """The two names under which a build may be in the store: the name of a build only for hosts with the same root
        folder and processor, and the name of a build for any host."""
        host, tools = context.host, context.tools
        if host.name not in self._surroundings:
            self._surroundings[host.name] = host.script(_SURROUNDINGS).stdout
        made_of = (key, tools.identity, self._surroundings[host.name])
        return object_name(*made_of, str(host.root), tools.processor), object_name(*made_of)

    def _packed(self, context: BuildContext, facts: BuildFacts) -> Manifest:
        """Pack a build into an archive on its host, and return the facts about the archive. Raises EnvironmentFailure
        if the build cannot be shared."""
        host = context.host
        build_store.check_unchanged(host, facts.key)
        folder = build_store.build_folder(host, facts.key)
        ended = host.script(_PACK, folder, context.work / "prefix", check=False, timeout=LONG)
        if not ended.ok:
            raise EnvironmentFailure(f"the build cannot be packed: {_first(ended.stdout + ended.stderr)}")
        way, size, sha256, rooted, *absent = ended.stdout.split("\n")[:-1]
        bound, free = self._store_names(context, facts.key)
        # A reused build counts as bound to its processor, because the files that would show this no longer exist.
        made_in = [context.work / "build", context.work / "source"]
        is_bound = rooted == "rooted" or bool(
            not is_processor_specific(context.builder, context.variant)
            and (facts.reused or host.script(MENTIONS, *made_in, timeout=LONG).stdout)
        )
        return Manifest(
            name=bound if is_bound else free, sha256=sha256, size=int(size), way="zstd" if way == "zstd" else "gzip",
            root=str(host.root), absent=tuple(absent),
        )  # fmt: skip

    @cached_property
    def _store(self) -> Store:
        return Store(self._address)

    def _may(self, operation: str) -> bool:
        return self._clock() >= self._quiet.get(operation, float("-inf"))

    def _suspend(self, operation: str, error: OSError) -> Iterable[Warned]:
        """After a failed ``operation`` ("read" or "written"), do not use the store for this operation for PAUSE
        seconds, and warn once."""
        self._quiet[operation] = self._clock() + PAUSE
        reason = mask_credentials(error.strerror or str(error))
        sentence = f"the shared builds in {self.address} cannot be {operation}"
        advice = f"The hunt builds for itself, and tries the shared builds again every {PAUSE / 60:.0f} minutes."
        yield from self._once(f"{sentence}: {reason}", advice, sentence)

    def _once(self, sentence: str, advice: str = "", about: str = "") -> Iterator[Warned]:
        if (about := about or sentence) not in self._said:
            self._said.add(about)
            yield Warned(sentence, advice)


def _first(output: str) -> str:
    return next(iter(output.strip().splitlines()), "the program printed no reason")


def _unpack(host: Host, key: str, manifest: Manifest) -> None:
    """On a host, check and unpack the archive of a build that was transferred, and move the build into the host's build
    store. Raises SharedBuildRefused if the archive is refused, and EnvironmentFailure if the build is not for this
    host.
    """
    target, of = build_store.build_folder(host, key), manifest
    try:
        host.script(_UNPACK_BUILD, target, of.sha256, of.way, key, of.root, host.root, *of.absent, timeout=LONG)
    except CommandFailed as failure:
        if failure.status == REFUSED:
            raise SharedBuildRefused(_first(failure.output)) from failure
        raise
