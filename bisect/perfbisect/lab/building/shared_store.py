"""The store of shared builds, which is a folder, or a bucket that fsspec can open; and the format of its objects.

A store holds objects with names; an object is read and written as a whole. Every operation raises FileNotFoundError for
an absent object, and another OSError if the store cannot be used. Only the removal of an absent object from a bucket
raises no error.

A shared build is one object: a line with its manifest, a line with its signature, then the archive. The manifest has
the hash of the archive. The signature is an HMAC of the manifest with a secret key that all users of the store have;
other users cannot make or change a shared build. If no key is configured, the line of the signature is empty, and only
the hash protects the build, against errors of the transfer.
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
    """A shared build is not used, because it cannot be read or is not trusted."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the folder of a store."""

    name: str
    size: int  # bytes
    used: float  # time of the last use, in seconds since the epoch


class Store:
    """Objects with names, in a folder (an absolute path) or at a URL that fsspec can open, such as
    ``s3://bucket/folder`` with s3fs.

    If the store is a folder, such as a folder of a file server, the folder must exist. The modification time of a file
    in the folder is the time at which the object was last used. All users who may enter the folder may read its files,
    whatever umask the user who wrote the files has.
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
    def read(self, name: str) -> Iterator["OpenObject"]:
        """The object of that name.

        Raises SharedBuildRefused if the store is a folder and another user has denied this user the permission to read
        the object.
        """
        self._check()
        if self.folder:
            path = self.folder / name
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                raise SharedBuildRefused(f"{path} cannot be read: permission denied")
            with suppress(OSError):  # the file may belong to another user
                os.utime(path)
        with closing(
            OpenObject(lambda: self._files.open(f"{self._base}/{name}", "rb", cache_type="readahead"))
        ) as file:
            yield file

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Store an object, and replace an existing object of this name. An interrupted write leaves no object.

        In a folder, the file gets this name only when it is complete. An existing object that this user is not
        permitted to replace is left unchanged.
        """
        self._check()
        path = f"{self._base}/.{name}.{secrets.token_hex(8)}" if self.folder else f"{self._base}/{name}"
        complete = False
        try:
            with closing(OpenObject(lambda: self._files.open(path, "wb"))) as file:
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
        """Remove the object of that name."""
        with _as_os_error():
            self._files.rm_file(f"{self._base}/{name}")

    def entries(self) -> list[StoredObject]:
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
    """Give all users of the folder access to a new file: set the file's group and mode by the group and the mode of the
    folder."""
    mode, group = (facts := folder.stat()).st_mode, facts.st_gid
    with suppress(OSError):  # the user is not in the group, or the file system has no groups
        os.fchown(descriptor, -1, group)
    with suppress(OSError):  # a file system without modes. Others may write, so that they can set the time of last use
        os.fchmod(descriptor, 0o600 | (mode & 0o111) << 2 | (0 if mode & stat.S_ISVTX else mode & 0o222))


class OpenObject:
    """An open object of the store. Its methods raise all errors of the storage library as OSError."""

    def __init__(self, opening: Callable[[], IO[bytes]]) -> None:
        file = _as_os_error()(opening)()
        self.read = _as_os_error()(file.read)
        self.write = _as_os_error()(file.write)
        self.seek = _as_os_error()(file.seek)
        self.close = _as_os_error()(file.close)
        self.fileno = file.fileno


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Within the block, raise errors of the storage library as OSError; errors of perfbisect are raised unchanged."""
    try:
        yield
    except (OSError, ImportError, PerfBisectError) as error:
        if error.args == (None,):  # some servers, such as Ceph's, send an error code without a message
            error.args = (str(error.__cause__),)
        raise
    except Exception as error:  # each storage library raises undocumented errors of its own
        raise OSError(str(error) or repr(error)) from error


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a shared build, which precede the archive in its object."""

    name: str  # of the object, which tells which build it is: see ``object_name``
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]  # of the archive
    size: Annotated[int, msgspec.Meta(ge=0)]  # of the archive in bytes
    way: Literal["zstd", "gzip"]  # how it is compressed
    root: str  # the root folder of the host that made the build
    absent: tuple[str, ...] = ()  # libraries that the programs need, but that were absent on the host that made it


def object_name(key: str, toolchain: str, surroundings: str, *bound_to: str) -> str:
    """The name of a build's object; ``bound_to`` is the root folder and the processor, if the build depends on them."""
    parts = [str(FORMAT), key, toolchain, surroundings, *bound_to]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40] + ENDING


def header_lines(manifest: Manifest, secret: bytes) -> bytes:
    """The first two lines of an object: the manifest and its signature."""
    line = msgspec.json.encode(manifest)
    return line + b"\n" + _signature(line, secret) + b"\n"


def read_header(source: OpenObject, name: str, secret: bytes) -> Manifest:
    """The manifest of the object with this name; after the call, the source is positioned at the start of the archive.

    Raises SharedBuildRefused if the header is incomplete, is not signed with ``secret``, or belongs to another object.
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
