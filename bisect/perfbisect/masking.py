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
    r"""([|?&]\s*@?(?:[a-z_-]*(?:token|password|passwd|secret|key)|pass|pwd|auth|header)=)[^\s|&'"`<>\#]+""",
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
    """The beginning of a URL, up to the last "@" of its word, with the user and the password masked."""
    scheme, before = found.groups()
    authority = re.split("[/?#]", before, maxsplit=1)[0]
    behind = f"{before[len(authority) :]}@"
    if authority == before:  # the whole is the user and the password
        return f"{scheme}://{_masked_user(scheme, before)}@"
    if "@" in authority:  # the last "@" belongs to the path, or to another URL
        user, _, host = authority.rpartition("@")
        return f"{scheme}://{_masked_user(scheme, user)}@{masked(host + behind)}"
    if ":" not in authority or PORT.fullmatch(authority):  # so does the only one
        return f"{scheme}://{masked(authority + behind)}"
    return f"{scheme}://{MASK}@"  # a password with a bare "/"


def _masked_user(scheme: str, user: str) -> str:
    return user if LOGIN.fullmatch(scheme) and ":" not in user else MASK
