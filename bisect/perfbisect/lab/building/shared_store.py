"""The store of shared builds, and the format of its objects. A store is a folder, or a bucket that the library fsspec
can open.

A store holds objects with names; an object is read and written as a whole. Every operation raises FileNotFoundError if
the object does not exist, and another OSError if the store cannot be used. The removal of a missing object from a
bucket, however, raises no error.

A shared build is one object: a line with the manifest (the facts about the build), a line with a signature, and an
archive with the build's files. The manifest contains the hash of the archive. The signature is an HMAC of the manifest
with a secret key that all users of the store have; a person without the key cannot make or change a shared build. If no
key is configured, the second line is empty, and the hash only protects against errors of the transfer.
"""

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec

from perfbisect.errors import PerfBisectError

EXTRA = "pip install 'perfbisect[s3]'"
ENDING = ".build"
FORMAT = 1
LONGEST = 1 << 16  # most bytes of the first two lines of an object


class SharedBuildRefused(PerfBisectError):
    """Raised because a shared build cannot be read, or has no valid signature."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the folder of a store."""

    name: str
    size: int  # bytes
    used: float  # time of the last use, in seconds since the epoch


class Store:
    """A store of objects with names, in a folder (an absolute path) or at a URL that the library fsspec can open, such
    as ``s3://bucket/folder`` if s3fs is installed. A folder, such as a folder of a file server, must exist. The
    modification time of a file in the folder is the time at which the object was last used. Every user who may enter
    the folder may read its files, regardless of the umask of the user who wrote the files.
    """

    def __init__(self, address: str) -> None:
        """Raises OSError if the library for the address is missing, or the address is not valid."""
        if address.startswith(("http://", "https://")):
            raise OSError("a web server cannot store shared builds; use a folder or a bucket")
        import fsspec  # imported here, as it is slow

        try:
            with _as_os_error():
                self._files, base = fsspec.core.url_to_fs(address)
        except ImportError as error:
            raise OSError(f"{error}. Addresses with s3:// need: {EXTRA}") from error
        self._base = base.rstrip("/")
        self.folder = Path(base) if "file" in self._files.protocol else None

    def has(self, name: str) -> bool:
        """Whether there is an object with this name."""
        self._check()
        with _as_os_error():
            return bool(self._files.isfile(f"{self._base}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator["OpenStoreObject"]:
        """The object with the name ``name``, open for reading. Raises SharedBuildRefused if the store is a folder and
        this user has no permission to read the object.
        """
        self._check()
        if self.folder:
            path = self.folder / name
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                raise SharedBuildRefused(f"{path} cannot be read: permission denied")
            with suppress(OSError):  # the file may belong to another user
                os.utime(path)
        with closing(
            OpenStoreObject(lambda: self._files.open(f"{self._base}/{name}", "rb", cache_type="readahead"))
        ) as file:
            yield file

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Store an object; an existing object with the same name is replaced, if this user has the permission. An
        interrupted write leaves no incomplete object, because a file in a folder gets its name only when the file is
        complete.
        """
        self._check()
        path = f"{self._base}/.{name}.{secrets.token_hex(8)}" if self.folder else f"{self._base}/{name}"
        complete = False
        try:
            with closing(OpenStoreObject(lambda: self._files.open(path, "wb"))) as file:
                if self.folder:
                    _give_access(self.folder, file.fileno())
                for part in parts:
                    file.write(part)
            if self.folder:
                with suppress(PermissionError):  # another user's file has this name, and the folder has the sticky bit
                    Path(path).replace(self.folder / name)
            complete = self.folder is None
        finally:
            if not complete:  # the temporary file; in a folder, it may have been renamed already
                with suppress(OSError), _as_os_error():
                    self._files.rm_file(path)

    def remove(self, name: str) -> None:
        """Remove the object with the name ``name``."""
        with _as_os_error():
            self._files.rm_file(f"{self._base}/{name}")

    def all_files(self) -> list[StoredObject]:
        """All objects of a folder, and the incomplete files that interrupted writers have left in the folder."""
        self._check()
        assert self.folder
        objects = []
        for file in self.folder.iterdir():
            if file.name.endswith(ENDING) or (file.name.startswith(".") and f"{ENDING}." in file.name):
                with suppress(FileNotFoundError):
                    facts = file.lstat()
                    objects.append(StoredObject(file.name, facts.st_size, facts.st_mtime))
        return objects

    def _check(self) -> None:
        if self.folder and not self.folder.is_dir():  # without its mount, the folder must not be created
            raise NotADirectoryError(f"the folder {self.folder} does not exist")
        self._files.invalidate_cache()


def _give_access(folder: Path, descriptor: int) -> None:
    """Give all users who may enter the folder access to a new file: the file gets the folder's group, and a mode that
    follows from the folder's mode."""
    mode, group = (facts := folder.stat()).st_mode, facts.st_gid
    with suppress(OSError):  # the user is not in the group, or the file system has no groups
        os.fchown(descriptor, -1, group)
    with suppress(OSError):  # a file system without modes. Others may write, so that they can set the time of last use
        os.fchmod(descriptor, 0o600 | (mode & 0o111) << 2 | (0 if mode & stat.S_ISVTX else mode & 0o222))


class OpenStoreObject:
    """An object of the store, open for reading or writing. Its methods convert all errors of the storage library to
    OSError."""

    def __init__(self, opening: Callable[[], IO[bytes]]) -> None:
        file = _as_os_error()(opening)()
        self.read = _as_os_error()(file.read)
        self.write = _as_os_error()(file.write)
        self.seek = _as_os_error()(file.seek)
        self.close = _as_os_error()(file.close)
        self.fileno = file.fileno


@contextmanager
def _as_os_error() -> Iterator[None]:
    """During the ``with`` block, convert errors of the storage library to OSError; errors of perfbisect remain
    unchanged."""
    try:
        yield
    except (OSError, ImportError, PerfBisectError) as error:
        if error.args == (None,):  # some servers, such as Ceph's, send an error code without a message
            error.args = (str(error.__cause__),)
        raise
    except Exception as error:  # each storage library raises undocumented errors of its own
        raise OSError(str(error) or repr(error)) from error


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a shared build, which the first line of its object contains."""

    name: str  # of the object, which tells which build it is: see ``object_name``
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]  # of the archive
    size: Annotated[int, msgspec.Meta(ge=0)]  # of the archive in bytes
    way: Literal["zstd", "gzip"]  # how it is compressed
    root: str  # the root folder of the host that made the build
    absent: tuple[str, ...] = ()  # libraries that the programs need, but that were absent on the host that made it


def object_name(key: str, toolchain: str, surroundings: str, *bound_to: str) -> str:
    """The name of a shared build's object. If the build depends on the root folder and the processor of its host,
    ``bound_to`` has both."""
    parts = [str(FORMAT), key, toolchain, surroundings, *bound_to]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40] + ENDING


def header_lines(manifest: Manifest, secret: bytes) -> bytes:
    """The first two lines of an object: the manifest and its signature."""
    line = msgspec.json.encode(manifest)
    return line + b"\n" + _signature(line, secret) + b"\n"


def read_header(source: OpenStoreObject, name: str, secret: bytes) -> Manifest:
    """The manifest of the shared build with the name ``name``, read from ``source``; the archive is the rest of
    ``source``.

    Raises SharedBuildRefused if the first two lines are incomplete, are not signed with ``secret``, or belong to
    another object.
    """
    line, _, remainder = source.read(LONGEST).partition(b"\n")
    signature, complete, _ = remainder.partition(b"\n")
    if not complete:
        raise SharedBuildRefused("the file does not begin with a manifest")
    if secret and not signature:
        raise SharedBuildRefused("the file is not signed")
    if secret and not hmac.compare_digest(signature, _signature(line, secret)):
        raise SharedBuildRefused("the file is signed with another key, or was changed after signing")
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise SharedBuildRefused("the manifest of the file cannot be read") from None
    if manifest.name != name:
        raise SharedBuildRefused("the manifest of the file describes another build")
    source.seek(len(line) + len(signature) + 2)
    return manifest


def _signature(line: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, line, hashlib.sha256).hexdigest().encode() if secret else b""
