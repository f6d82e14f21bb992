"""Where shared builds are kept: a folder, a server that answers HTTP, or what fsspec reaches, such as a bucket.

A store holds whole objects by name. Every operation raises FileNotFoundError for an object that is not there, and another
OSError where the store cannot be used. A bucket does not say whether there was anything to remove.
"""

import base64
import http.client
import os
import secrets
import stat
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.error import HTTPError, URLError

TIMEOUT = 30.0  # seconds without an answer
EXTRA = "pip install 'perfbisect[s3]'"


class Unreadable(OSError):
    """An object that this user may not read, in a store that can be read."""


class Source(Protocol):
    """An open object."""

    def read(self, size: int, /) -> bytes:
        """At most that many bytes; none at its end."""


class Store(Protocol):
    """Objects by name."""

    def has(self, name: str) -> bool:
        """Whether there is an object of that name."""

    def read(self, name: str) -> AbstractContextManager[Source]:
        """The object of that name, as a context."""

    def write(self, name: str, size: int, parts: Iterable[bytes]) -> None:
        """Store ``size`` bytes under that name, in place of what it had. What is cut off is not taken for whole."""

    def remove(self, name: str) -> None:
        """Remove the object of that name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a folder."""

    name: str
    size: int  # bytes
    used: float  # seconds since the epoch


class FolderStore:
    """A folder that exists, such as one of a file server. The time of a file is that of its last use.

    Who may enter the folder may read its files, whatever the umask of the user who wrote them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        """Whether there is an object of that name."""
        self._check()
        return (self.folder / name).is_file()

    @contextmanager
    def read(self, name: str) -> Iterator[Source]:
        """The object of that name. Raises Unreadable where another user keeps it from this one."""
        self._check()
        path = self.folder / name
        if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
            raise Unreadable(f"{path} cannot be read: permission denied")
        with path.open("rb") as file:
            with suppress(OSError):  # it may belong to another user
                os.utime(path)
            yield file

    def write(self, name: str, size: int, parts: Iterable[bytes]) -> None:
        """Store an object: under its name once it is whole. One that this user may not replace stays."""
        self._check()
        new = self.folder / f".{name}.{secrets.token_hex(8)}"
        try:
            with new.open("xb") as file:
                self._hand_over(file.fileno())
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            with suppress(PermissionError):  # another user's, in a folder with the sticky bit
                new.replace(self.folder / name)
        finally:
            new.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove the object of that name."""
        (self.folder / name).unlink()

    def entries(self, ending: str) -> list[Entry]:
        """All objects whose names have that ending, and what interrupted writers have left, longest unused first."""
        self._check()
        found = []
        for file in self.folder.iterdir():
            if file.name.endswith(ending) or (file.name.startswith(".") and f"{ending}." in file.name):
                with suppress(FileNotFoundError):
                    facts = file.lstat()
                    found.append(Entry(file.name, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.name))

    def _hand_over(self, file: int) -> None:
        """Let those use a new file who may use the folder: its group is that of the folder, its mode follows from it."""
        mode, group = (facts := self.folder.stat()).st_mode, facts.st_gid
        with suppress(OSError):  # a user outside that group, or a file system without groups
            os.fchown(file, -1, group)
        with suppress(OSError):  # a file system without modes; to set the time of its last use takes the right to write
            os.fchmod(file, 0o600 | (mode & 0o111) << 2 | (0 if mode & stat.S_ISVTX else mode & 0o222))

    def _check(self) -> None:
        if not self.folder.is_dir():  # a mount that is missing must not be filled
            raise NotADirectoryError(f"there is no folder {self.folder}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirections are errors: they would hand the password to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class HttpStore:
    """A server that answers GET, HEAD, PUT and DELETE below an address, as WebDAV servers do."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        login, _, host = parts.netloc.rpartition("@")
        self._base = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        secret = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
        self._headers = {"Authorization": f"Basic {secret}"} if login else {}
        self._opener = urllib.request.build_opener(_NoRedirect)

    def has(self, name: str) -> bool:
        """Whether there is an object of that name."""
        try:
            with self._asked("HEAD", name):
                return True
        except FileNotFoundError:
            return False

    @contextmanager
    def read(self, name: str) -> Iterator[Source]:
        """The object of that name."""
        with self._asked("GET", name) as answer:
            yield _HttpSource(answer)

    def write(self, name: str, size: int, parts: Iterable[bytes]) -> None:
        """Store an object."""
        with self._asked("PUT", name, parts, {"Content-Length": str(size), "Content-Type": "application/octet-stream"}):
            pass

    def remove(self, name: str) -> None:
        """Remove the object of that name."""
        with self._asked("DELETE", name):
            pass

    def _asked(
        self, method: str, name: str, data: Iterable[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> HTTPResponse:
        request = urllib.request.Request(
            f"{self._base}/{name}", data=data, headers={**self._headers, **(headers or {})}, method=method
        )
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
        except HTTPError as error:
            with error:
                if error.code in (404, 410):
                    raise FileNotFoundError(name) from None
                raise OSError(f"it answers {method} with {error.code} {error.reason}") from error
        except URLError as error:
            raise OSError(str(getattr(error.reason, "strerror", None) or error.reason)) from error
        except http.client.HTTPException as error:
            raise OSError(f"it does not speak HTTP: {error!r}") from error
        except ValueError as error:  # such as a name that no server can have
            raise OSError(f"its address cannot be used: {error}") from error
        return answer


@dataclass(frozen=True, slots=True)
class _HttpSource:
    answer: HTTPResponse

    def read(self, size: int, /) -> bytes:
        try:
            return self.answer.read(size)
        except http.client.HTTPException as error:
            raise OSError(f"its answer breaks off: {error!r}") from error


class FsspecStore:
    """What the library fsspec reaches: ``s3://bucket/folder`` with s3fs, and others."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec  # an extra

            with _as_os_error():
                self._files, self._base = fsspec.core.url_to_fs(address)
        except ImportError as error:
            raise OSError(f"{error}. {EXTRA} brings what s3:// needs") from error

    def has(self, name: str) -> bool:
        """Whether there is an object of that name."""
        with _as_os_error():
            self._files.invalidate_cache()
            return bool(self._files.isfile(f"{self._base}/{name}"))

    @contextmanager
    def read(self, name: str) -> Iterator[Source]:
        """The object of that name."""
        with _as_os_error():
            self._files.invalidate_cache()
            opened: IO[bytes] = self._files.open(f"{self._base}/{name}", "rb", cache_type="readahead")
        try:
            yield _FsspecSource(opened)
        finally:
            opened.close()

    def write(self, name: str, size: int, parts: Iterable[bytes]) -> None:
        """Store an object; nothing stays of one that is cut off."""
        path = f"{self._base}/{name}"
        try:
            with _as_os_error(), self._files.open(path, "wb") as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            with suppress(OSError), _as_os_error():
                self._files.rm_file(path)
            raise

    def remove(self, name: str) -> None:
        """Remove the object of that name."""
        with _as_os_error():
            self._files.rm_file(f"{self._base}/{name}")


@dataclass(frozen=True, slots=True)
class _FsspecSource:
    file: IO[bytes]

    def read(self, size: int, /) -> bytes:
        with _as_os_error():
            return self.file.read(size)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Errors of a client library as OSError; those of hosts stay as they are."""
    from perfbisect.errors import PerfBisectError

    try:
        yield
    except (OSError, ImportError, PerfBisectError) as error:
        if error.args == (None,):  # some servers, such as Ceph's, name an error and do not describe it
            error.args = (str(error.__cause__),)
        raise
    except Exception as error:  # each library has its own, and none is documented
        raise OSError(str(error) or repr(error)) from error


def open_store(address: str) -> Store:
    """The store at an address: an absolute path, or a URL.

    Raises OSError where the library that it needs is missing, or the address is none.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file":
        return FolderStore(Path(rest if separator else address).expanduser())
    try:
        return HttpStore(address) if scheme in ("http", "https") else FsspecStore(address)
    except ValueError as error:
        raise OSError(f"its address cannot be used: {error}") from error
