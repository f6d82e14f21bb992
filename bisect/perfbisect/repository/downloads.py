"""Archives that trees need beside git, fetched to the user's cache: what they must be is known by a sum.

A download that was cut goes on where it ended. Nothing gets its name before its sum is right.
"""

import hashlib
from collections.abc import Generator
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from shlex import quote
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from perfbisect.errors import EnvironmentFailure
from perfbisect.folders import cache_folder
from perfbisect.repository.discovery import locked

MB = 1_000_000
CHUNK = 1 << 20  # bytes at once
MOST = 10_000 * MB  # bytes of an archive
SILENCE = 60.0  # seconds without a byte after which a download has failed


def downloaded(name: str, address: str, sha256: str) -> Generator[tuple[int, int], None, Path]:
    """The file of that sum, from the address unless the cache has it; yields megabytes done and in all.

    Raises EnvironmentFailure, with the command that puts the file there, when it cannot be had or has another sum.
    """
    folder, file = cache_folder() / "archives", address.rpartition("/")[2]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, part = folder / file, folder / f"{file}.{sha256[:8]}.part"
    with locked(folder / "lock"):
        if (found := _sum(path)) != sha256:
            other = f"The one in {folder} has the sum {found}. " if found else ""
            by_hand = f"{other}To put it there by hand: `cp {quote(file)} {quote(str(folder))}/`."
            try:
                found = yield from _fetched(address, sha256, part)
            except (OSError, HTTPException, ValueError) as error:
                cause = getattr(error, "reason", error)
                why = getattr(cause, "strerror", "") or cause
                raise EnvironmentFailure(f"{name} cannot be fetched from {address}: {why}", by_hand) from error
            if found != sha256:
                part.unlink()
                sentence = f"{name} is not used: {address} has the sha256 {found}, and the recipe says {sha256}"
                raise EnvironmentFailure(sentence, by_hand)
            part.rename(path)
    return path


def _fetched(address: str, sha256: str, part: Path) -> Generator[tuple[int, int], None, str]:
    """Bring the rest of what is at the address, or all of it, to the file ``part``; returns its sum.

    Raises OSError, HTTPException or ValueError when nothing more comes, or nothing that could be an archive.
    """
    while True:
        before = _size(part)
        try:
            yield from _appended(address, part)
        except (OSError, HTTPException, ValueError) as error:
            full = False
            if isinstance(error, HTTPError):
                error.close()  # it is the answer, too, and holds the connection
                full = error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            if _size(part) > before:
                continue
            if not (before and full):
                raise
        if (found := _sum(part)) == sha256 or not before:
            return found
        part.unlink()  # once more from the beginning: what was there may be of another file


def _appended(address: str, part: Path) -> Generator[tuple[int, int]]:
    headers = {"User-Agent": "perfbisect"} | ({"Range": f"bytes={size}-"} if (size := _size(part)) else {})
    yield 0, 0
    with (
        urlopen(Request(address, headers=headers), timeout=SILENCE) as answer,
        part.open("ab" if answer.status == HTTPStatus.PARTIAL_CONTENT else "wb") as file,
    ):
        total = file.tell() + int(answer.headers.get("Content-Length", 0))
        while chunk := answer.read(CHUNK):
            if file.tell() + len(chunk) > MOST:
                raise HTTPException(f"there are more than {MOST // MB:,} MB")
            file.write(chunk)
            yield file.tell() // MB, total // MB
        if file.tell() < total:
            raise HTTPException(f"{total - file.tell()} of {total} bytes are missing")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sum(path: Path) -> str:
    """The sha256 of a file; "" where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
