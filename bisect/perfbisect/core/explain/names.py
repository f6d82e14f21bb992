"""Names of functions: as a symbol table has them, demangled, and as the source code has them. Pure."""

import re

from perfbisect.core.domain.profiles import source_name

OPERATOR = re.compile(
    r"\boperator(?=\W)\s*(\(\)|\[\]|[-+*/%^&|~!=<>,]+|\"\"\s*\w+|(?<=\s)(?:(?:new|delete)(?:\[\])?|[\w:]+))"
)
LAMBDA = re.compile(r"::(?:\{lambda|\{\{closure|'lambda|\$_\d|\{unnamed).*")
HASH = re.compile(r"::h[0-9a-f]{16}$")  # of Rust's symbols
VERSION = re.compile(r"(?<=\w)@.*")  # "memcpy@plt", "memcpy@@GLIBC_2.14"
QUALIFIERS = re.compile(r"(?:\s+(?:const|volatile|noexcept)|\s*&{1,2})+$")
LAST = re.compile(r"(?:(?P<scope>[\w~$]+)(?:::|\.))?(?P<own>[\w~$]+)\s*$")
LONGEST = 80  # characters in a sentence
OPENING, CLOSING = "(<[{", ")>]}"


def split(function: str) -> tuple[str, str]:
    """The innermost scope (a class or a namespace) and the own name of a function; "" where there is none.

    What a lambda does belongs to the function that contains it.

    >>> split("void store::Page<int>::insert(std::string const&) const [clone .cold]")
    ('Page', 'insert')
    """
    text = HASH.sub("", LAMBDA.sub("", VERSION.sub("", source_name(function))))
    if found := OPERATOR.search(text):
        scope = LAST.search(flat(text[: found.start()]).removesuffix("::"))
        return scope["own"] if scope else "", f"operator{found[1].replace(' ', '')}"
    last = LAST.search(QUALIFIERS.sub("", flat(text)))
    return (last["scope"] or "", last["own"]) if last else ("", "")


def flat(text: str) -> str:
    """The text without what is in brackets of any kind: arguments, those of templates, and their like."""
    depth, kept = 0, []
    for place, letter in enumerate(text):
        if letter in OPENING:
            depth += 1
        elif letter in CLOSING and not (letter == ">" and text[place - 1 : place] == "-"):
            depth -= 1
        elif depth <= 0:
            kept.append(letter)
    return "".join(kept)


def same(one: str, other: str) -> bool:
    """Whether two names can mean one function: their own names are equal, and their scopes where both have one."""
    scope, own = split(one)
    other_scope, other_own = split(other)
    return bool(own) and own == other_own and (scope == other_scope or not (scope and other_scope))


def short(function: str) -> str:
    """A name for a sentence: with all its scopes, without arguments, and at most 80 characters.

    >>> short("void store::Page<int>::insert(std::string const&) const")
    'store::Page::insert'
    """
    text = source_name(function)
    plain = QUALIFIERS.sub("", flat(text)).rpartition(" ")[2]
    usual = plain and not OPERATOR.search(text) and "{" not in text and not plain.startswith("::")
    name = plain if usual else text
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[1 - LONGEST // 2 :]}"
