"""Who may read what is served: the names of a password file, by HTTP's Basic scheme, and who has the token of a file, as a Bearer.
Without these files, this machine alone.

A line of a password file is ``NAME:HASH``. The hash is scrypt's (RFC 7914), written as passlib and others write it, in the PHC
string format: ``$scrypt$ln=15,r=8,p=3$SALT$KEY``, base64 without padding. Neither file may be readable by others. Both are read
again for each request, so that whom a line is taken from is refused at once.
"""

import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.wording.text import printable, shell_words

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
BASE64 = r"([A-Za-z0-9+/]+)"
HASH = re.compile(rf"\$scrypt\$ln=(\d{{1,2}}),r=(\d{{1,2}}),p=(\d{{1,2}})\${BASE64}\${BASE64}")
COST = (15, 8, 3)  # log2 of N, r and p: 32 MiB, and about 0.3 s
MEMORY = 2**28  # bytes that a line may ask for, at most
SHORTEST = 8, 20  # characters of a password, of a token
LONGEST = 2**20  # bytes of a file
DELAY = 1.0  # seconds that a wrong password or token waits for its answer
Answer = tuple[int, dict[str, str], str]  # status, headers and text
STRANGE = "This is served to this machine alone. Open it as localhost, with the same port.\n"
UNKNOWN = "This is served to those who log in.\n"


def hashed(password: str) -> str:
    """The hash of a password, with a salt of its own."""
    salt = secrets.token_bytes(16)
    parts = (b64encode(part).decode().rstrip("=") for part in (salt, scrypt(password.encode(), salt, 32, *COST)))
    return "$scrypt$ln={},r={},p={}${}${}".format(*COST, *parts)


def is_of(password: bytes, stored: str) -> bool:
    """Whether a password has that hash."""
    *cost, salt, key = parts_of(stored)
    return hmac.compare_digest(scrypt(password, salt, len(key), *cost), key)


def scrypt(password: bytes, salt: bytes, size: int, ln: int, r: int, p: int) -> bytes:
    """The key of so many bytes that is derived from a password."""
    return hashlib.scrypt(password, salt=salt, n=2**ln, r=r, p=p, dklen=size, maxmem=2 * MEMORY)


def parts_of(stored: str) -> tuple[int, int, int, bytes, bytes]:
    """Cost, salt and key of a hash. Raises ValueError for what is none, is weak, or would need too much memory or time."""
    found = HASH.fullmatch(stored)
    if found is None:
        raise ValueError
    ln, r, p = map(int, found.group(1, 2, 3))
    salt, key = (b64decode(part + "=" * (-len(part) % 4)) for part in found.group(4, 5))
    if not (ln and r and 0 < p <= 16 and 128 * r * 2**ln <= MEMORY and len(key) >= 16):
        raise ValueError
    return ln, r, p, salt, key


NOBODY = f"$scrypt$ln={COST[0]},r={COST[1]},p={COST[2]}${'A' * 22}${'A' * 43}"  # an unknown name takes as long as a known one


@dataclass(eq=False)
class Guard:
    """Answers in place of the server where a request is not admitted."""

    passwords: Path | None
    token: Path | None
    address: str  # that is listened on; without a login, of this machine alone
    admitted: set[bytes] = field(default_factory=set)  # digests of passwords that were right, with their hashes
    turn: threading.Lock = field(default_factory=threading.Lock)  # one hash at a time

    def asks(self) -> bool:
        """Whether there is a login. Raises UsageError for a file that is missing, has a mistake, or can be read by others."""
        if self.passwords and not read_passwords(self.passwords):
            raise UsageError(f"{self.passwords} names nobody.", f"Add a name: {adding(self.passwords)}")
        if self.token:
            read_token(self.token)
        return bool(self.passwords or self.token)

    def refusal(self, host: str, authorization: str) -> Answer | None:
        """The answer to a request with these two headers that is not admitted; else None."""
        if not (self.passwords or self.token):
            return None if is_own(host, self.address) else (421, {}, STRANGE)
        if self.admits(authorization):
            return None
        scheme = 'Basic realm="perfbisect", charset="UTF-8"' if self.passwords else 'Bearer realm="perfbisect"'
        return 401, {"WWW-Authenticate": scheme}, UNKNOWN

    def admits(self, authorization: str) -> bool:
        """Whether this is right. What is wrong is answered a second later; with files that cannot be read, everything is."""
        scheme, _, sent = authorization.partition(" ")
        known = {"basic": self.knows, "bearer": self.is_token}.get(scheme.lower())
        with suppress(PerfBisectError):  # the files were in order when serving began
            if known and known(sent.strip()):
                return True
        if authorization:
            time.sleep(DELAY)
        return False

    def is_token(self, sent: str) -> bool:
        """Whether it is the token."""
        return self.token is not None and hmac.compare_digest(sent.encode(), read_token(self.token).encode())

    def knows(self, sent: str) -> bool:
        """Whether a name and its password are those of a line. A password that was right once is not hashed again."""
        if self.passwords is None:
            return False
        lines = read_passwords(self.passwords)
        try:
            user, _, password = b64decode(sent, validate=True).partition(b":")
        except ValueError:
            return False
        stored = lines.get(user.decode(errors="replace"), NOBODY)
        digest = hashlib.sha256(stored.encode() + password).digest()
        if digest not in self.admitted:
            with self.turn:
                if not is_of(password, stored):
                    return False
            self.admitted.add(digest)
        return True

    def place(self, port: int) -> str:
        """The address of what is served, for a browser."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{port}/"


def is_own(host: str, address: str) -> bool:
    """Whether the header Host names this machine: as localhost, by a loopback address, or by the ``address`` of --address.

    A page of a stranger can have its own name lead to 127.0.0.1 (DNS rebinding). The browser of a user of this machine
    would then let it read what is served here; but the name stands in each request.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("localhost", address.lower()) or ip_address(name).is_loopback
    except ValueError:
        return False


def read_passwords(path: Path) -> dict[str, str]:
    """The names of a password file with their hashes. Raises UsageError with the number of a line that is wrong."""
    found = {}
    for number, line in enumerate(private(path).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, _, stored = line.strip().partition(":")
            try:
                parts_of(stored if NAME.fullmatch(name) else "")
            except ValueError:
                sentence = f"Line {number} of {path} is no name with a hash of scrypt that is fit for use."
                raise UsageError(sentence, f"Make it again: {adding(path)}") from None
            found[name] = stored
    return found


def read_token(path: Path) -> str:
    """The token of a file: its only line. Raises UsageError for a short one."""
    token = private(path).strip()
    if len(token.split()) != 1 or len(token) < SHORTEST[1]:
        sentence = f"{path} has no token: one line without spaces, of {SHORTEST[1]} characters or more."
        raise UsageError(sentence, "Make one: (umask 077; openssl rand -hex 32 > FILE)")
    return token


def private(path: Path) -> str:
    """The text of a file that only its owner can read. Raises UsageError for any other."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UsageError(f"Others can read {path}, or write it.", f"Make it private: chmod 600 {path}")
            return file.read(LONGEST)
    except OSError as trouble:
        raise UsageError(f"{path} cannot be read: {trouble.strerror}.") from None


def adding(path: Path) -> str:
    """The command that adds a name to a password file."""
    return shell_words(["bisect", "serve", "--add-user", "NAME", "--password-file", str(path)])


def add_user(path: Path, name: str, password: str) -> bool:
    """Write a line into a password file, which is made if it does not exist; returns whether the name is new in it.

    Raises UsageError for a name or a password that cannot be used.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"{printable(name)!r} is no name.", "It has letters, digits and . _ @ -, 64 at most.")
    if len(password) < SHORTEST[0]:
        raise UsageError(f"The password is shorter than {SHORTEST[0]} characters.", "Choose a longer one.")
    lines = private(path).splitlines() if path.exists() else []
    others = [line for line in lines if not line.startswith(f"{name}:")]
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.touch(0o600, exist_ok=False)
    beside.write_text("".join(f"{line}\n" for line in [*others, f"{name}:{hashed(password)}"]), encoding="utf-8")
    beside.replace(path)
    return len(others) == len(lines)
