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


class Refused(PerfBisectError):
    """A shared build that is not used."""


@dataclass(frozen=True, slots=True)
class StoredObject:
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
            return bool(self._files.isfile(f"{self._base}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator["Opened"]:
        """The object of that name. Raises Refused where another user keeps it from this one in a folder."""
        self._check()
        if self.folder:
            path = self.folder / name
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                raise Refused(f"{path} cannot be read: permission denied")
            with suppress(OSError):  # it may belong to another user
                os.utime(path)
        with closing(Opened(lambda: self._files.open(f"{self._base}/{name}", "rb", cache_type="readahead"))) as file:
            yield file

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Store an object in place of what that name had; nothing stays of one that is cut off.

        In a folder it gets its name once it is whole, and one that this user may not replace stays.
        """
        self._check()
        path = f"{self._base}/.{name}.{secrets.token_hex(8)}" if self.folder else f"{self._base}/{name}"
        whole = False
        try:
            with closing(Opened(lambda: self._files.open(path, "wb"))) as file:
                if self.folder:
                    _hand_over(self.folder, file.fileno())
                for part in parts:
                    file.write(part)
            if self.folder:
                with suppress(PermissionError):  # another user's, in a folder with the sticky bit
                    Path(path).replace(self.folder / name)
            whole = self.folder is None
        finally:
            if not whole:  # or has another name now
                with suppress(OSError), _as_os_error():
                    self._files.rm_file(path)

    def remove(self, name: str) -> None:
        """Remove the object of that name."""
        with _as_os_error():
            self._files.rm_file(f"{self._base}/{name}")

    def entries(self) -> list[StoredObject]:
        """All objects of a folder, and what interrupted writers have left there."""
        self._check()
        assert self.folder
        found = []
        for file in self.folder.iterdir():
            if file.name.endswith(ENDING) or (file.name.startswith(".") and f"{ENDING}." in file.name):
                with suppress(FileNotFoundError):
                    facts = file.lstat()
                    found.append(StoredObject(file.name, facts.st_size, facts.st_mtime))
        return found

    def _check(self) -> None:
        if self.folder and not self.folder.is_dir():  # a mount that is missing must not be filled
            raise NotADirectoryError(f"there is no folder {self.folder}")
        self._files.invalidate_cache()


def _hand_over(folder: Path, file: int) -> None:
    """Let those use a new file who may use the folder: its group is that of the folder, its mode follows from it."""
    mode, group = (facts := folder.stat()).st_mode, facts.st_gid
    with suppress(OSError):  # a user outside that group, or a file system without groups
        os.fchown(file, -1, group)
    with suppress(OSError):  # a file system without modes; to set the time of its last use takes the right to write
        os.fchmod(file, 0o600 | (mode & 0o111) << 2 | (0 if mode & stat.S_ISVTX else mode & 0o222))


class Opened:
    """An object that is open, whose errors are OSErrors; those of who reads or writes it stay as they are."""

    def __init__(self, opening: Callable[[], IO[bytes]]) -> None:
        file = _as_os_error()(opening)()
        self.read = _as_os_error()(file.read)
        self.write = _as_os_error()(file.write)
        self.seek = _as_os_error()(file.seek)
        self.close = _as_os_error()(file.close)
        self.fileno = file.fileno


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Errors of a client library as OSError; our own stay as they are."""
    try:
        yield
    except (OSError, ImportError, PerfBisectError) as error:
        if error.args == (None,):  # some servers, such as Ceph's, name an error and do not describe it
            error.args = (str(error.__cause__),)
        raise
    except Exception as error:  # each library has its own, and none is documented
        raise OSError(str(error) or repr(error)) from error


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a shared build before it is unpacked."""

    name: str  # of the object, from which follows whose build it is: see ``name_of``
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]  # of the archive
    size: Annotated[int, msgspec.Meta(ge=0)]  # of the archive in bytes
    way: Literal["zstd", "gzip"]  # how it is compressed
    root: str  # the root folder of the host that built
    absent: tuple[str, ...] = ()  # libraries that its programs name and that even the host that built lacks


def name_of(key: str, toolchain: str, surroundings: str, *bound_to: str) -> str:
    """The name of a build's object; ``bound_to`` are root folder and processor of one that depends on them."""
    parts = [str(FORMAT), key, toolchain, surroundings, *bound_to]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40] + ENDING


def header(manifest: Manifest, secret: bytes) -> bytes:
    """The first two lines of the object."""
    line = msgspec.json.encode(manifest)
    return line + b"\n" + _signature(line, secret) + b"\n"


def read_header(source: Opened, name: str, secret: bytes) -> Manifest:
    """The manifest of the object of that name; the source is then at the archive. Raises Refused."""
    line, _, rest = source.read(LONGEST).partition(b"\n")
    signature, complete, _ = rest.partition(b"\n")
    if not complete:
        raise Refused("it does not begin with a manifest")
    if secret and not signature:
        raise Refused("it is not signed")
    if secret and not hmac.compare_digest(signature, _signature(line, secret)):
        raise Refused("it is signed with another key, or was changed after that")
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("its manifest cannot be read") from None
    if manifest.name != name:
        raise Refused("its manifest is that of another build")
    source.seek(len(line) + len(signature) + 2)
    return manifest


def _signature(line: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, line, hashlib.sha256).hexdigest().encode() if secret else b""
