"""Passwords and tokens in URLs, masked in all that is printed or kept. Imports little, so that every module may use it.

An address stays as it is where it is used: in recipes, in hosts.toml, and in the commands that `bisect resume` repeats.
"""

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

MASK = "***"

QUOTE = r"""'\\?"'\\?"'"""  # a ' within quotes, as a shell writes it; also as text in JSON
WORD = re.compile(rf"""(?:{QUOTE}|[^\s"`<>|])+""")  # with all that a URL may consist of
SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}:(?://+|\\/\\/))", re.IGNORECASE)  # also as some programs write it in JSON
LOGIN = re.compile(r"ssh|git|rsync|sftp|(git|svn)\+ssh", re.IGNORECASE)  # a user name alone is no secret there
PORT = re.compile(r"(\[[^\]]*\]|[^:]*):\d*")
ATTRIBUTE = re.compile(  # of ccache's remote storage, and of the query of a URL
    rf"""([|?&;\#]\s*@?(?:[a-z_-]*(?:token|password|passwd|secret|signature|key)|pass|pwd|auth|sig|header)=)"""
    rf"""(?:{QUOTE}|;(?![\w@-]+=)|[^\s|&;"`<>\#])+?(?=(?!{QUOTE})'?(?:;[\w@-]+=|[\s|&"`<>\#]|\Z))""",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """``text`` without the passwords and tokens of its URLs.

    >>> masked("redis://user:secret@cache:6379|password=other")
    'redis://***@cache:6379|password=***'
    """
    if "://" not in text and ":\\/\\/" not in text:
        return text
    return ATTRIBUTE.sub(rf"\1{MASK}", WORD.sub(_without_users, text))


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


def _without_users(found: re.Match[str]) -> str:
    """A word with the users and the passwords of its URLs masked: each reaches to the next, or to the end of the word."""
    if "@" not in found[0]:
        return found[0]
    begin, *parts = SCHEME.split(found[0])
    urls = (
        scheme + _without_user(scheme.partition(":")[0], rest) for scheme, rest in zip(*[iter(parts)] * 2, strict=True)
    )
    return "".join([begin, *urls])


def _without_user(scheme: str, rest: str) -> str:
    """What follows the scheme of a URL, masked up to the last "@" that can end a user and a password.

    Passwords with a bare "@" or "/" occur.
    """
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if "@" in authority:
        user, _, host = authority.rpartition("@")
        shown = user if LOGIN.fullmatch(scheme) and ":" not in user else MASK
        return f"{shown}@{host}{rest[len(authority) :]}" if user else rest
    if "@" not in rest or ":" not in authority or PORT.fullmatch(authority):  # it belongs to the path
        return rest
    return f"{MASK}@{rest.rpartition('@')[2]}"  # a password with a bare "/"
