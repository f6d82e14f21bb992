"""Decides who may read the pages that `bisect serve` serves: users in a password file, who log in by HTTP's Basic
scheme, and users who send the token of a token file by the Bearer scheme.

Without a password file and a token file, only this machine may read the pages. A line of a password file is
``NAME:HASH``, where HASH is a bcrypt hash, as ``htpasswd -B`` writes. Neither the password file nor the token file may
be readable by other users. Both files are read again for each request, so that a user whose line is removed is refused
immediately.
"""

import hashlib
import hmac
import os
import re
import threading
import time
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import bcrypt

from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.wording.text import printable, shell_words

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-5])\$[./A-Za-z0-9]{53}")  # bcrypt, with a cost of at most some seconds
NO_HASH = "." * 53  # salt and hash that no password has
SHORTEST = 8, 20  # fewest characters of a password, and of a token
LONGEST_PASSWORD = 72  # bytes: bcrypt ignores further ones
LONGEST = 2**20  # most bytes of a file that are read
DELAY = 1.0  # seconds by which the answer to a wrong password or token is delayed
HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII | re.IGNORECASE)  # the HTTP header Host
# Headers of every answer: foreign pages must not show it in a frame, and the browser must not store it.
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store"}
Answer = tuple[int, dict[str, str], str]  # status, headers and text
STRANGE = "This server answers only requests from its own machine. There, open http://localhost with the same port.\n"
UNKNOWN = "This server requires a login.\n"


def matches_hash(password: bytes, password_hash: str) -> bool:
    """Whether ``password_hash`` is a bcrypt hash of ``password``."""
    return len(password) <= LONGEST_PASSWORD and bcrypt.checkpw(password, password_hash.encode())


@dataclass(eq=False)
class LoginGuard:
    """Checks each request before the server gets the request, and answers requests that are refused."""

    password_file: Path | None
    token_file: Path | None
    address: str  # address on which the server listens; without a login, other machines must not reach it
    verified_digests: set[bytes] = field(default_factory=set)  # of (stored hash, right password); they save time later
    hash_lock: threading.Lock = field(default_factory=threading.Lock)  # one hash is computed at a time

    def has_login(self) -> bool:
        """Whether a password file or a token file is configured, so that users must log in. Raises UsageError if one of
        these files is missing, has a mistake, or can be read by other users.
        """
        if self.password_file and not read_passwords(self.password_file):
            text = f"The password file {self.password_file} has no users."
            raise UsageError(text, f"Add a user: {command_to_add_user(self.password_file)}")
        if self.token_file:
            read_token(self.token_file)
        return bool(self.password_file or self.token_file)

    def refusal(self, host: str, authorization: str) -> Answer | None:
        """The answer that refuses a request, chosen by its headers Host (``host``) and Authorization
        (``authorization``); None if the request is admitted."""
        if not (self.password_file or self.token_file):
            return None if names_this_machine(host, self.address) else (421, {}, STRANGE)
        if self.is_admitted(authorization):
            return None
        scheme = 'Basic realm="perfbisect", charset="UTF-8"' if self.password_file else 'Bearer realm="perfbisect"'
        return 401, {"WWW-Authenticate": scheme}, UNKNOWN

    def is_admitted(self, authorization: str) -> bool:
        """Whether the Authorization header of a request has a valid password or token. If the header is wrong, the
        function waits for a second, to slow down the guessing of passwords. If the password file or the token file
        cannot be read, no header is valid.
        """
        scheme, _, words = authorization.partition(" ")
        sent = words.strip()
        with suppress(PerfBisectError):  # if a file became unreadable, the header is wrong
            if scheme.lower() == "basic" and self.is_known_user(sent):
                return True
            token = read_token(self.token_file) if scheme.lower() == "bearer" and self.token_file else ""
            if token and hmac.compare_digest(sent.encode(), token.encode()):
                return True
        if authorization:
            time.sleep(DELAY)
        return False

    def is_known_user(self, credentials: str) -> bool:
        """Whether ``credentials`` have a name in the password file and the password of this user. A password that was
        verified before is not hashed again, because bcrypt is slow.
        """
        if self.password_file is None:
            return False
        lines = read_passwords(self.password_file)
        try:
            user, _, password = b64decode(credentials, validate=True).partition(b":")
        except ValueError:
            return False
        # The check of an unknown name takes as long as the check of the most expensive stored hash, so that the time
        # does not show which names exist. The costs of hashes vary, because other programs make cheaper hashes.
        cost = max((stored[4:6] for stored in lines.values()), default="12")
        stored = lines.get(user.decode(errors="replace"), f"$2b${cost}${NO_HASH}")
        digest = hashlib.sha256(stored.encode() + password).digest()
        if digest not in self.verified_digests:
            with self.hash_lock:
                if not matches_hash(password, stored):
                    return False
            self.verified_digests.add(digest)
        return True

    def page_address(self, port: int) -> str:
        """The URL of the pages."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{port}/"


def names_this_machine(host: str, address: str) -> bool:
    """Whether ``host``, the Host header of a request, names this machine: as localhost, by a loopback address, or by
    ``address``, the address in the option --address.

    A web page of an attacker can make its own host name resolve to 127.0.0.1 (DNS rebinding). A browser on this machine
    would then let the attacker's page read the pages of perfbisect. The Host header of such a request has the
    attacker's host name, so the request can be recognised.
    """
    if not (match := HOST.fullmatch(host)):
        return False
    name = (match[1] or match[2]).lower()
    try:
        return name in ("localhost", address.lower()) or ip_address(name).is_loopback
    except ValueError:
        return False


def read_passwords(path: Path) -> dict[str, str]:
    """The hash of each user's password, by the name of the user, from a password file.

    Raises UsageError with the number of the line if a line is invalid.
    """
    hashes = {}
    for number, line in enumerate(private_text(path, f"Create it: {command_to_add_user(path)}").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, _, stored = line.strip().partition(":")
            if not (NAME.fullmatch(name) and HASH.fullmatch(stored)):
                sentence = f"Line {number} of {path} is not NAME:HASH with a bcrypt hash of a cost up to 15."
                raise UsageError(sentence, f"Replace the line: {command_to_add_user(path)}")
            hashes[name] = stored
    return hashes


def read_token(path: Path) -> str:
    """The token in a file, which is the only line of the file. Raises UsageError if the token is too short."""
    token = private_text(path).strip()
    if len(token.split()) != 1 or len(token) < SHORTEST[1]:
        sentence = f"{path} has no token. A token is one line without spaces, of at least {SHORTEST[1]} characters."
        raise UsageError(sentence, "Create a token: (umask 077; openssl rand -hex 32 > FILE)")
    return token


def private_text(path: Path, advice: str = "") -> str:
    """The text of a file, which must be readable only by its owner.

    Raises UsageError if others can read the file; if the file is missing, the error has ``advice``.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                mend = shell_words(["chmod", "600", str(path)])
                raise UsageError(f"Other users can read or write {path}.", f"Make the file private: {mend}")
            return file.read(LONGEST)
    except OSError as trouble:
        raise UsageError(f"{path} cannot be read: {trouble.strerror}.", advice) from None


def command_to_add_user(path: Path) -> str:
    """The command that adds a name to a password file."""
    return shell_words(["bisect", "serve", "--add-user", "NAME", "--password-file", str(path)])


def add_user(path: Path, name: str, password: str) -> bool:
    """Add a user to a password file, or replace the user's password; the file is created if it does not exist. Returns
    whether the user is new.

    Raises UsageError for an invalid name, and for a password that is too short or too long.
    """
    if not NAME.fullmatch(name):
        text = f"{printable(name)!r} is not a valid name."
        raise UsageError(text, "Use at most 64 letters, digits and the signs . _ @ -")
    if len(password) < SHORTEST[0] or len(password.encode()) > LONGEST_PASSWORD:
        advice = f"Use at least {SHORTEST[0]} characters and at most {LONGEST_PASSWORD} bytes."
        raise UsageError("The password is too short or too long.", advice)
    lines = private_text(path).splitlines() if path.exists() else []
    other_lines = [line for line in lines if not line.startswith(f"{name}:")]
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.touch(0o600, exist_ok=False)
    stored = bcrypt.hashpw(password.encode(), bcrypt.gensalt()).decode()
    beside.write_text("".join(f"{line}\n" for line in [*other_lines, f"{name}:{stored}"]), encoding="utf-8")
    beside.replace(path)
    return len(other_lines) == len(lines)
