"""Passwords and tokens in URLs, masked in all that is printed or kept. Imports little, so that every module may use it.

An address stays as it is where it is used: in recipes, in hosts.toml, and in the commands that `bisect resume` repeats.
"""

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

MASK = "***"

# Up to the last "@" of a word, since passwords with a bare "@" or "/" occur. The bounds keep hostile text cheap.
USER = re.compile(r"""\b([a-z][a-z0-9+.-]{0,30})://([^\s'"`<>|]{1,500})@""", re.IGNORECASE)
LOGIN = re.compile(r"ssh|git|rsync|sftp|(git|svn)\+ssh", re.IGNORECASE)  # a user name alone is no secret there
PORT = re.compile(r"(\[[^\]]*\]|[^:]*):\d*")
ATTRIBUTE = re.compile(  # of ccache's remote storage, and of the query of a URL
    r"""([|?&]\s*@?(?:[a-z-]*(?:token|password|passwd|secret|key)|pass|pwd|auth|header)=)[^\s|&'"`<>\#]+""",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """``text`` without the passwords and tokens of its URLs.

    >>> masked("redis://user:secret@cache:6379|password=other")
    'redis://***@cache:6379|password=***'
    """
    if "://" not in text:
        return text
    return ATTRIBUTE.sub(rf"\1{MASK}", USER.sub(_without_user, text))


def masked_fields(value: Any) -> Any:
    """A dataclass, a mapping or a sequence with ``masked`` applied to every text in it; what has none is returned itself."""
    match value:
        case str():
            return masked(value)
        case tuple() | list():
            parts = [masked_fields(part) for part in value]
            changed = any(new is not old for new, old in zip(parts, value, strict=True))
            return type(value)(parts) if changed else value
        case dict():
            found = {key: masked_fields(part) for key, part in value.items()}
            return found if any(found[key] is not part for key, part in value.items()) else value
        case _ if is_dataclass(value) and not isinstance(value, type):
            known = {each.name: getattr(value, each.name) for each in fields(value)}
            changes = {name: new for name, old in known.items() if (new := masked_fields(old)) is not old}
            return replace(value, **changes) if changes else value
        case _:
            return value


def _without_user(found: re.Match[str]) -> str:
    """The beginning of a URL, up to its host, masked if it contains more than the host."""
    scheme, rest = found.groups()
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:  # what follows is a path, or another URL
        user, _, host = authority.rpartition("@")
        begin, rest = f"{scheme}://", masked(f"{host}{rest[len(authority) :]}@")
        return f"{begin}{user if _is_login(scheme, user) else MASK}@{rest}"
    if authority != rest and (":" not in authority or PORT.fullmatch(authority)):  # the "@" belongs to the path
        return f"{scheme}://{authority}{masked(f'{rest[len(authority) :]}@')}"
    return found[0] if _is_login(scheme, rest) else f"{scheme}://{MASK}@"


def _is_login(scheme: str, user: str) -> bool:
    return bool(LOGIN.fullmatch(scheme)) and ":" not in user
