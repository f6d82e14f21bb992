"""The store of shared builds: a folder, or a place that fsspec reaches, such as a bucket; and the format of an object there.

A store holds objects with names; an object is read and written as a whole. Every operation raises FileNotFoundError for
an absent object, and another OSError if the store cannot be used. A bucket does not report whether the object that is
to be removed existed.

A shared build is one object: a line with its manifest, a line with its signature, then the archive. The manifest has
the hash of the archive. The signature is an HMAC of the manifest. All users who share builds have its key; without the
key, a shared build cannot be made or changed. Without a key the line is empty, and the hash only shows that the build
has arrived unchanged.
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
LONGEST = 1 << 16  # bytes of the first two lines


class SharedBuildRefused(PerfBisectError):
    """A shared build that is not used."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a folder."""

    name: str
    size: int  # bytes
    used: float  # seconds since the epoch


class Store:
    """Objects with names, at an absolute path or at a URL for fsspec: ``s3://bucket/folder`` with s3fs, and others.

    If the store is a folder, such as a folder of a file server, the folder must exist. The time of a file in the folder
    is the time at which the object was last used. Whoever may enter the folder may read its files, whatever the umask
    of the user who wrote them.
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

        Raises Refused if the store is a folder and another user has denied this user the permission to read the object.
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
        """Store an object, replacing any of that name; of a write that is cut off nothing stays.

        In a folder it gets its name once it is complete. An existing object that this user is not permitted to replace
        is left unchanged.
        """
        self._check()
        path = f"{self._base}/.{name}.{secrets.token_hex(8)}" if self.folder else f"{self._base}/{name}"
        complete = False
        try:
            with closing(OpenObject(lambda: self._files.open(path, "wb"))) as file:
                if self.folder:
                    _hand_over(self.folder, file.fileno())
                for part in parts:
                    file.write(part)
            if self.folder:
                with suppress(PermissionError):  # another user's, in a folder with the sticky bit
                    Path(path).replace(self.folder / name)
            complete = self.folder is None
        finally:
            if not complete:  # in a folder, it may have its name already
                with suppress(OSError), _as_os_error():
                    self._files.rm_file(path)

    def remove(self, name: str) -> None:
        """Remove the object of that name."""
        with _as_os_error():
            self._files.rm_file(f"{self._base}/{name}")

    def entries(self) -> list[StoredObject]:
        """The names of all objects of a folder, and of incomplete files that interrupted writers have left in it."""
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
        if self.folder and not self.folder.is_dir():  # a mount that is missing must not be filled
            raise NotADirectoryError(f"the folder {self.folder} does not exist")
        self._files.invalidate_cache()


def _hand_over(folder: Path, file: int) -> None:
    """Give all users of the folder access to a new file, by the folder's group and by a mode like the folder's mode."""
    mode, group = (facts := folder.stat()).st_mode, facts.st_gid
    with suppress(OSError):  # a user outside that group, or a file system without groups
        os.fchown(file, -1, group)
    with suppress(OSError):  # a file system without modes; to set the time of its last use takes the right to write
        os.fchmod(file, 0o600 | (mode & 0o111) << 2 | (0 if mode & stat.S_ISVTX else mode & 0o222))


class OpenObject:
    """An open object, whose errors are OSErrors; errors of the code that uses it stay as they are."""

    def __init__(self, opening: Callable[[], IO[bytes]]) -> None:
        file = _as_os_error()(opening)()
        self.read = _as_os_error()(file.read)
        self.write = _as_os_error()(file.write)
        self.seek = _as_os_error()(file.seek)
        self.close = _as_os_error()(file.close)
        self.fileno = file.fileno


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise errors of a client library as OSError; our own stay as they are."""
    try:
        yield
    except (OSError, ImportError, PerfBisectError) as error:
        if error.args == (None,):  # some servers, such as Ceph's, name an error and do not describe it
            error.args = (str(error.__cause__),)
        raise
    except Exception as error:  # each library has its own errors, and none are documented
        raise OSError(str(error) or repr(error)) from error


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a shared build, which precede the archive in its object."""

    name: str  # of the object, which tells which build it is: see ``object_name``
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]  # of the archive
    size: Annotated[int, msgspec.Meta(ge=0)]  # of the archive in bytes
    way: Literal["zstd", "gzip"]  # how it is compressed
    root: str  # the root folder of the host that built
    absent: tuple[str, ...] = ()  # libraries that its programs name but that the host that built lacked, too


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

    Raises Refused.
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
