"""Finished builds that several machines share: asked for before a commit is built, and offered once it is.

The controller transfers them, so hosts need no access to the store. What arrives is checked on the host before it is
unpacked (``shared_store.py``, ``archives.py``); what fails is removed from the store, and the commit is built. A store that
does not answer is left alone for some minutes: a hunt never ends because of it.
"""

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from perfbisect.core.domain.events import Warned
from perfbisect.errors import CommandFailed, ConnectionLost, EnvironmentFailure
from perfbisect.host.facts import is_full
from perfbisect.host.packages import missing
from perfbisect.host.protocol import Host, no_space
from perfbisect.lab.build import archives, build_store, pipeline
from perfbisect.lab.build.archives import REFUSED
from perfbisect.lab.build.build_store import ATTEMPTS, READY
from perfbisect.lab.build.log_parser import Progress
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.lab.build.shared_store import (
    FORMAT,
    WAYS,
    Manifest,
    Refused,
    Source,
    Store,
    Unfit,
    Unreadable,
    header,
    name_of,
    read_header,
)
from perfbisect.lab.build.toolchain import mentions_native
from perfbisect.masking import masked

LONG = 3600.0  # seconds: packing or unpacking a large system with what it is linked again from
PAUSE = 600.0  # seconds for which a store that has failed is not asked
MB = 10**6
COMMANDS = {"zstd": "zstd -q -T0", "gzip": "gzip -n"}

Clock = Callable[[], float]


class SharedBuilds:
    """The store at ``address``; ``secret`` signs, and decides what is taken; empty: every build is."""

    def __init__(self, address: str, secret: bytes = b"", clock: Clock = time.monotonic) -> None:
        self.address = masked(address)
        self._address, self._secret, self._clock = address, secret, clock
        self._store: Store | None = None
        self._quiet: dict[str, float] = {}  # what cannot be done with the store → until when it is not tried
        self._said: set[str] = set()
        self._bad: set[str] = set()  # names of refused builds, to be replaced
        self._surroundings: dict[str, str] = {}  # by host

    @property
    def signed(self) -> bool:
        """Whether only builds of those who have the key are taken."""
        return bool(self._secret)

    def fetch(self, context: BuildContext, key: str) -> Generator[Progress | Warned, None, bool]:
        """Bring the build with that key to the host of ``context``; true if it is there then."""
        host = context.host
        for name in self._names(context, key):
            if not self._may("read"):
                return False
            try:
                manifest = yield from self._fetched(context, key, name)
            except FileNotFoundError:
                continue
            except Unreadable as locked:  # one missing object, which is to be replaced
                self._bad.add(name)
                advice = "It is built, as are others of which this is true. Who wrote them can run: chmod a+r FILE"
                yield from self._once(Warned(f"a shared build is not used: {locked}", advice), "unreadable")
                continue
            except OSError as trouble:
                yield from self._trouble("read", trouble)
                return False
            except (Refused, Unfit) as reason:
                host.run(["sh", "-c", archives.CLEAN, "clean", str(build_store.folder(host, key))], timeout=LONG)
                yield from self._unused(context, name, reason)
                continue
            if manifest:
                return True
        return False

    def offer(
        self, context: BuildContext, key: str, processor_matters: Callable[[], bool]
    ) -> Generator[Progress | Warned]:
        """Put the build with that key into the store, unless it is there."""
        host = context.host
        place = build_store.folder(host, key)
        bound, free = self._names(context, key)
        if not self._may("written"):
            return
        try:
            store = self._opened()
            if any(name not in self._bad and store.has(name) for name in (bound, free)):
                return
            yield Progress("share")
            packed = self._packed(context, key, processor_matters)
            if isinstance(packed, Warned):
                yield from self._once(packed)
                return
            for left in reversed(range(ATTEMPTS)):
                try:
                    yield from self._sent(store, host, packed)
                    break
                except ConnectionLost:
                    if not left:
                        raise
            self._bad -= {bound, free}
        except OSError as trouble:
            yield from self._trouble("written", trouble)
        except ConnectionLost:
            raise
        except EnvironmentFailure as trouble:  # a host on which it cannot be packed builds all the same
            yield from self._once(Warned(f"a build on host {host.name} cannot be shared: {trouble}", trouble.advice))
        finally:
            with suppress(EnvironmentFailure):
                host.run(["sh", "-c", archives.CLEAN, "clean", str(place)], timeout=LONG)

    def try_out(self) -> None:
        """Write an object, read it, and remove it. Raises OSError for what cannot be done."""
        name, said = f"trial-{secrets.token_hex(8)}", b"perfbisect"
        store = self._opened()
        store.write(name, [said])
        with store.read(name) as source:
            found = source.read(len(said))
        store.remove(name)
        if found != said:
            raise OSError("what is read is not what was written")

    def _names(self, context: BuildContext, key: str) -> tuple[str, str]:
        """The names under which a build may be: for such hosts as this one only, and for more."""
        tools, surroundings = context.tools, self._surroundings_of(context.host)
        bound_to = (str(context.host.root), tools.processor)
        return name_of(key, tools.identity, surroundings, bound_to), name_of(key, tools.identity, surroundings)

    def _surroundings_of(self, host: Host) -> str:
        if host.name not in self._surroundings:
            self._surroundings[host.name] = host.run(["sh", "-c", archives.SURROUNDINGS, "surroundings"]).stdout
        return self._surroundings[host.name]

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._address)
        return self._store

    def _fetched(
        self, context: BuildContext, key: str, name: str
    ) -> Generator[Progress | Warned, None, Manifest | None]:
        """Fetch one object."""
        for left in reversed(range(ATTEMPTS)):
            try:
                with self._opened().read(name) as source:
                    manifest = read_header(source, name, self._secret)
                    self._check(context, key, manifest)
                    yield Progress("fetch")
                    if missing(context.host, ["tar", manifest.way]):
                        raise Unfit(f"unpacking it needs {manifest.way}, which is not installed there")
                    yield from self._received(context.host, key, source, manifest)
                self._unpack(context.host, key, manifest)
            except ConnectionLost:
                if not left:
                    raise
            else:
                return manifest
        return None

    def _check(self, context: BuildContext, key: str, manifest: Manifest) -> None:
        """Raise Refused where a manifest is not that of this build, for such a host."""
        tools, host = context.tools, context.host
        wanted = (key, tools.identity, self._surroundings_of(host))
        if (manifest.key, manifest.toolchain, manifest.surroundings) != wanted:
            raise Refused("its manifest is that of another build")
        native = build_store.for_processor(context.builder, context.variant)
        if (manifest.bound or native) and manifest.processor != tools.processor:
            raise Refused("it was built for another processor")
        if manifest.bound and manifest.root != str(host.root):
            raise Refused("it was built for another root folder")

    def _received(self, host: Host, key: str, source: Source, manifest: Manifest) -> Generator[Progress]:
        """Stream the archive to the host."""
        place, left = str(build_store.folder(host, key)), manifest.size
        host.run(["sh", "-c", READY, "ready", place], timeout=LONG)
        total, done = manifest.size // MB, 0
        try:
            with host.stream(["sh", "-c", archives.RECEIVE, "receive", place]) as target:
                while left and (part := source.read(min(1 << 16, left))):
                    left -= len(part)
                    try:
                        target.sendall(part)
                    except OSError:  # the command has ended, and reports why
                        break
                    if (manifest.size - left) // MB > done:
                        done = (manifest.size - left) // MB
                        yield Progress("fetch", done, total)
        except CommandFailed as failure:
            raise _not_unpacked(host, failure.output) from failure

    def _unpack(self, host: Host, key: str, manifest: Manifest) -> None:
        """Check what arrived, and put it in its place. Raises Refused and Unfit."""
        place = str(build_store.folder(host, key))
        argv = [place, manifest.sha256, manifest.way, key, manifest.root, str(host.root), *manifest.absent]
        ended = host.run(["sh", "-c", archives.UNPACK_BUILD, "unpack", *argv], check=False, timeout=LONG)
        said = ended.stdout.strip()
        match ended.status:
            case 0:
                return
            case _ if ended.status == REFUSED:
                raise Refused(said)
            case archives.UNFIT:
                raise Unfit(f"it needs {said}, which is not installed there")
            case _:
                raise _not_unpacked(host, ended.stderr)

    def _packed(
        self, context: BuildContext, key: str, processor_matters: Callable[[], bool]
    ) -> tuple[Manifest, str] | Warned:
        """Pack a build on its host, as the manifest and the folder of its archive; a warning where it cannot be shared."""
        host, tools = context.host, context.tools
        build_store.check(host, key)
        place = str(build_store.folder(host, key))
        way = next(way for way in WAYS if way == WAYS[-1] or not missing(host, [way]))
        argv = [place, COMMANDS[way], str(context.work / "prefix")]
        ended = host.run(["sh", "-c", archives.PACK, "pack", *argv], check=False, timeout=LONG)
        if ended.status == REFUSED:
            return Warned(
                f"builds of {context.builder.name} are not shared: {ended.stdout.strip()} is a link that leads out of the"
                " installation, or no file"
            )
        if not ended.ok:
            raise EnvironmentFailure(f"packing it fails: {_first(ended.stderr)}")
        size, sha256, rooted, *absent = ended.stdout.split("\n")[:-1]
        native = not build_store.for_processor(context.builder, context.variant) and processor_matters()
        bound = rooted == "rooted" or native
        names = self._names(context, key)
        manifest = Manifest(
            format=FORMAT, name=names[0] if bound else names[1], key=key, sha256=sha256, size=int(size), way=way,
            toolchain=tools.identity, surroundings=self._surroundings_of(host), processor=tools.processor,
            root=str(host.root), bound=bound, absent=tuple(absent),
        )  # fmt: skip
        return manifest, place

    def _sent(self, store: Store, host: Host, packed: tuple[Manifest, str]) -> Generator[Progress]:
        """Stream what is packed from the host to the store."""
        manifest, place = packed
        first = header(manifest, self._secret)

        def parts() -> Iterator[bytes]:
            yield first
            with host.stream(["sh", "-c", archives.SEND, "send", place]) as source:
                while part := source.recv(1 << 16):
                    yield part

        yield Progress("share", 0, manifest.size // MB)
        store.write(manifest.name, parts())

    def _may(self, what: str) -> bool:
        return self._clock() >= self._quiet.get(what, float("-inf"))

    def _trouble(self, what: str, trouble: OSError) -> Iterable[Warned]:
        """The store cannot be read, or written: it is left alone for a while."""
        self._quiet[what] = self._clock() + PAUSE
        reason = masked(trouble.strerror or str(trouble))
        yield from self._once(
            Warned(
                f"the shared builds in {self.address} cannot be {what}: {reason}",
                f"The hunt goes on by building. They are tried again every {PAUSE / 60:.0f} minutes.",
            ),
            what,
        )

    def _once(self, warning: Warned, about: str = "") -> Iterable[Warned]:
        if (about := about or warning.text) not in self._said:
            self._said.add(about)
            yield warning

    def _unused(self, context: BuildContext, name: str, reason: Refused | Unfit) -> Iterable[Warned]:
        """A build that is not used; one that was refused is removed from the store."""
        host = context.host.name
        if isinstance(reason, Unfit):
            yield from self._once(
                Warned(f"shared builds are not used on host {host}: {reason}", "It builds for itself.")
            )
            return
        self._bad.add(name)
        with suppress(OSError):
            self._opened().remove(name)
        yield Warned(
            f"a shared build is refused, and is built again on host {host}: {reason}",
            f"It was {name} in {self.address}: who can write there, and does a server in between change what it sends?",
        )


def _first(said: str) -> str:
    return next(iter(said.strip().splitlines()), "no reason was printed")


def _not_unpacked(host: Host, said: str) -> EnvironmentFailure | Unfit:
    """The error for a command that fails on the host for no reason of the build: nothing can be built on a full disk either."""
    if is_full(host):
        return no_space(host.name, f"a shared build is not unpacked: {_first(said)}")
    return Unfit(f"they cannot be unpacked there: {_first(said)}")


def obtain(shared: SharedBuilds | None, context: BuildContext, sha: str) -> Generator[Progress | Warned, None, Built]:
    """As ``pipeline.build``, but a build that others have made is fetched, and one that they lack is given to them.

    Both happen at once, while the host does nothing else: a run that is measured later is not disturbed.
    """
    if shared is None:
        return (yield from pipeline.build(context, sha))
    began = time.monotonic()
    key = pipeline.key_of(context, sha)
    here = build_store.find(context.host, key, sha) is not None
    fetched = not here and (yield from shared.fetch(context, key))
    took = time.monotonic() - began
    built = yield from pipeline.build(context, sha)
    if fetched and built.facts.reused:
        return replace(built, facts=replace(built.facts, shared=True, seconds=took))

    def processor_matters() -> bool:
        """What an earlier session has built may: the files that say so are gone."""
        places = [context.work / "build", context.work / "source"]
        return built.facts.reused or mentions_native(context.host, places)

    yield from shared.offer(context, built.facts.key, processor_matters)
    return built
