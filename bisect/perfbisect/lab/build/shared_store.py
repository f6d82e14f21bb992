"""Where shared builds are kept: a folder, or what else fsspec reaches, such as a bucket; and what one object there is.

A store holds whole objects by name. Every operation raises FileNotFoundError for an object that is not there, and another
OSError where the store cannot be used. A bucket does not say whether there was anything to remove.

A shared build is one object: a line with its manifest, a line with its signature, then the archive. The manifest has the
hash of the archive, and the signature is one of the manifest: an HMAC by a key that those who share builds have, so that
who lacks it can neither make nor change one. Without a key the line is empty, and the hash only shows that the build has
arrived as it was stored.
"""

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import msgspec

from perfbisect.errors import PerfBisectError

EXTRA = "pip install 'perfbisect[s3]'"
ENDING = ".build"
FORMAT = 1
LONGEST = 1 << 16  # bytes of the first two lines
WAYS = ("zstd", "gzip")  # of compression


class Unreadable(OSError):
    """An object that this user may not read, in a store that can be read."""


class Source(Protocol):
    """An open object."""

    def read(self, size: int, /) -> bytes:
        """At most that many bytes; none at its end."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a folder."""

    name: str
    size: int  # bytes
    used: float  # seconds since the epoch


class Store:
    """Objects by name, at an absolute path or a URL of fsspec's: ``s3://bucket/folder`` with s3fs, and others.

    A folder exists before, such as one of a file server. The time of a file there is that of its last use, and who may
    enter the folder may read its files, whatever the umask of the user who wrote them.
    """

    def __init__(self, address: str) -> None:
        """Raises OSError where the library that the address needs is missing, or the address is none."""
        if address.startswith(("http://", "https://")):
            raise OSError("a web server is no place for them: use a folder or a bucket")
        import fsspec  # takes a while

        try:
            with _as_os_error():
                self._files, base = fsspec.core.url_to_fs(address)
        except ImportError as error:
            raise OSError(f"{error}. {EXTRA} brings what s3:// needs") from error
        self._base = base.rstrip("/")
        self.folder = Path(base) if "file" in self._files.protocol else None

    def has(self, name: str) -> bool:
        """Whether there is an object of that name."""
        self._check()
        with _as_os_error():
            self._files.invalidate_cache()
            return bool(self._files.isfile(f"{self._base}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator[Source]:
        """The object of that name. Raises Unreadable where another user keeps it from this one in a folder."""
        self._check()
        if self.folder:
            path = self.folder / name
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                raise Unreadable(f"{path} cannot be read: permission denied")
            with suppress(OSError):  # it may belong to another user
                os.utime(path)
        with _as_os_error():
            self._files.invalidate_cache()
            opened: IO[bytes] = self._files.open(f"{self._base}/{name}", "rb", cache_type="readahead")
        try:
            yield _Reading(opened)
        finally:
            opened.close()

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Store an object in place of what that name had; nothing stays of one that is cut off.

        In a folder it gets its name once it is whole, and one that this user may not replace stays.
        """
        self._check()
        path = f"{self._base}/.{name}.{secrets.token_hex(8)}" if self.folder else f"{self._base}/{name}"
        try:
            with _as_os_error(), self._files.open(path, "wb") as file:
                if self.folder:
                    _hand_over(self.folder, file.fileno())
                for part in parts:
                    file.write(part)
                if self.folder:
                    file.flush()
                    os.fsync(file.fileno())
            if self.folder:
                with suppress(PermissionError):  # another user's, in a folder with the sticky bit
                    Path(path).replace(self.folder / name)
        except BaseException:
            self._drop(path)
            raise
        if self.folder:
            self._drop(path)

    def remove(self, name: str) -> None:
        """Remove the object of that name."""
        with _as_os_error():
            self._files.rm_file(f"{self._base}/{name}")

    def entries(self) -> list[Entry]:
        """All objects of a folder, and what interrupted writers have left there, longest unused first."""
        self._check()
        assert self.folder
        found = []
        for file in self.folder.iterdir():
            if file.name.endswith(ENDING) or (file.name.startswith(".") and f"{ENDING}." in file.name):
                with suppress(FileNotFoundError):
                    facts = file.lstat()
                    found.append(Entry(file.name, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.name))

    def _drop(self, path: str) -> None:
        with suppress(OSError), _as_os_error():
            self._files.rm_file(path)

    def _check(self) -> None:
        if self.folder and not self.folder.is_dir():  # a mount that is missing must not be filled
            raise NotADirectoryError(f"there is no folder {self.folder}")


def _hand_over(folder: Path, file: int) -> None:
    """Let those use a new file who may use the folder: its group is that of the folder, its mode follows from it."""
    mode, group = (facts := folder.stat()).st_mode, facts.st_gid
    with suppress(OSError):  # a user outside that group, or a file system without groups
        os.fchown(file, -1, group)
    with suppress(OSError):  # a file system without modes; to set the time of its last use takes the right to write
        os.fchmod(file, 0o600 | (mode & 0o111) << 2 | (0 if mode & stat.S_ISVTX else mode & 0o222))


@dataclass(frozen=True, slots=True)
class _Reading:
    file: IO[bytes]

    def read(self, size: int, /) -> bytes:
        with _as_os_error():
            return self.file.read(size)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Errors of a client library as OSError; those of hosts stay as they are."""
    try:
        yield
    except (OSError, ImportError, PerfBisectError) as error:
        if error.args == (None,):  # some servers, such as Ceph's, name an error and do not describe it
            error.args = (str(error.__cause__),)
        raise
    except Exception as error:  # each library has its own, and none is documented
        raise OSError(str(error) or repr(error)) from error


class Refused(Exception):
    """A shared build that is not used; ``str()`` says why."""


class Unfit(Exception):
    """A shared build that is whole, but not for this host; ``str()`` says why."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a shared build before it is unpacked."""

    format: int
    name: str  # of the object
    key: str  # of the build
    sha256: str  # of the archive
    size: int  # of the archive in bytes
    way: str  # how it is compressed: see WAYS
    toolchain: str  # see Toolchain.identity
    surroundings: str  # see `surroundings` in builds.py
    processor: str  # of the host that built, as its compiler sees it
    root: str  # the root folder of that host
    bound: bool  # whether the build is only for hosts with that root folder and that processor
    absent: tuple[str, ...] = ()  # libraries that its programs name and that even the host that built lacks


def name_of(key: str, toolchain: str, surroundings: str, bound_to: tuple[str, str] | None = None) -> str:
    """The name of a build's object; ``bound_to`` are root folder and processor of one that depends on them."""
    parts = [str(FORMAT), key, toolchain, surroundings, *(bound_to or ())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40] + ENDING


def header(manifest: Manifest, secret: bytes) -> bytes:
    """The first two lines of the object."""
    line = msgspec.json.encode(manifest)
    return line + b"\n" + _signature(line, secret) + b"\n"


def read_header(source: Source, name: str, secret: bytes) -> Manifest:
    """The manifest of the object of that name; the source is then at the archive. Raises Refused."""
    line, signature = _line(source), _line(source)
    if secret and not signature:
        raise Refused("it is not signed")
    if secret and not hmac.compare_digest(signature, _signature(line, secret)):
        raise Refused("it is signed with another key, or was changed after that")
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("its manifest cannot be read") from None
    if manifest.format != FORMAT or manifest.way not in WAYS or len(manifest.sha256) != 64 or manifest.size < 0:
        raise Refused("its manifest is not one of this version")
    if manifest.name != name:
        raise Refused("its manifest is that of another build")
    return manifest


def _signature(line: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, line, hashlib.sha256).hexdigest().encode() if secret else b""


def _line(source: Source) -> bytes:
    """The next line, read byte by byte: what follows belongs to the archive."""
    line = bytearray()
    while byte := source.read(1):
        if byte == b"\n":
            return bytes(line)
        line += byte
        if len(line) > LONGEST:
            break
    raise Refused("it does not begin with a manifest")
