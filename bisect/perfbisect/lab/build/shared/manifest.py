"""A shared build as one object: a line with its manifest, a line with its signature, then the archive. Pure.

The manifest has the hash of the archive, and the signature is one of the manifest: an HMAC by a key that those who share
builds have, so that who lacks it can neither make nor change one. Without a key the line is empty, and the hash only shows
that the build has arrived as it was stored.
"""

import hashlib
import hmac

import msgspec

from perfbisect.lab.build.shared.stores import Source

ENDING = ".build"
FORMAT = 1
LONGEST = 1 << 16  # bytes of the first two lines
WAYS = ("zstd", "gzip")  # of compression


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
