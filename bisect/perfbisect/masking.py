"""Masks passwords and tokens of URLs in text before the text is printed or stored. This module imports little, so that
every module may import it.

Three kinds of text are not masked, because perfbisect uses their URLs: recipes, hosts.toml, and the commands that
`bisect resume` repeats.
"""

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

MASK = "***"

QUOTE = r"""'\\?"'\\?"'"""  # '"'"', as shlex.quote writes ' within quotes; in JSON, " has a backslash
WORD = re.compile(rf"""(?:{QUOTE}|[^\s"`<>|])+""")  # all characters that a URL may have
SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}:(?://+|\\/\\/))", re.IGNORECASE)  # the second form is for JSON
LOGIN = re.compile(r"ssh|git|rsync|sftp|(git|svn)\+ssh", re.IGNORECASE)  # a user name alone is no secret there
PORT = re.compile(r"(\[[^\]]*\]|[^:]*):\d*")
ATTRIBUTE = re.compile(  # secret attributes of ccache's remote storage, and of the query of a URL
    rf"""([|?&;\#]\s*@?(?:[a-z_-]*(?:token|password|passwd|secret|signature|key)|pass|pwd|auth|sig|header)=)"""
    rf"""(?:{QUOTE}|;(?![\w@-]+=)|[^\s|&;"`<>\#])+?(?=(?!{QUOTE})'?(?:;[\w@-]+=|[\s|&"`<>\#]|\Z))""",
    re.IGNORECASE,
)


def mask_credentials(text: str) -> str:
    """The text, in which *** replaces the passwords and tokens of URLs.

    >>> mask_credentials("redis://user:secret@cache:6379|password=other")
    'redis://***@cache:6379|password=***'
    """
    if "://" not in text and ":\\/\\/" not in text:
        return text
    return ATTRIBUTE.sub(rf"\1{MASK}", WORD.sub(_mask_urls_in_word, text))


def mask_credentials_in_fields(value: Any) -> Any:
    """A copy of a dataclass, a mapping or a sequence in which every text is masked; ``value`` itself if no text needs
    masking."""
    match value:
        case str():
            return mask_credentials(value)
        case tuple() | list():
            parts = [mask_credentials_in_fields(part) for part in value]
            changed = any(new is not old for new, old in zip(parts, value, strict=True))
            return type(value)(parts) if changed else value
        case dict():
            parts_by_key = {key: mask_credentials_in_fields(part) for key, part in value.items()}
            return parts_by_key if any(parts_by_key[key] is not part for key, part in value.items()) else value
        case _ if is_dataclass(value) and not isinstance(value, type):
            values = {field.name: getattr(value, field.name) for field in fields(value)}
            changes = {name: new for name, old in values.items() if (new := mask_credentials_in_fields(old)) is not old}
            return replace(value, **changes) if changes else value
        case _:
            return value


def _mask_urls_in_word(word: re.Match[str]) -> str:
    """The word, in which the users and passwords of all URLs are masked. A URL ends at the next URL, or at the end of
    the word."""
    if "@" not in word[0]:
        return word[0]
    begin, *parts = SCHEME.split(word[0])
    pairs = zip(parts[::2], parts[1::2], strict=True)
    urls = (scheme + _mask_credentials(scheme.partition(":")[0], rest) for scheme, rest in pairs)
    return "".join([begin, *urls])


def _mask_credentials(scheme: str, rest: str) -> str:
    """The rest of a URL after its scheme, in which the user and the password are masked: all text up to the last "@"
    that may end them.

    The last "@" is used because some passwords contain an unescaped "@" or "/".
    """
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if "@" in authority:
        user, _, host = authority.rpartition("@")
        shown = user if LOGIN.fullmatch(scheme) and ":" not in user else MASK
        return f"{shown}@{host}{rest[len(authority) :]}" if user else rest
    if "@" not in rest or ":" not in authority or PORT.fullmatch(authority):  # an @ belongs to the path
        return rest
    return f"{MASK}@{rest.rpartition('@')[2]}"  # the password contains an unescaped "/"
