"""HTML pages from templates: one self-contained file each, whose style and script are inside it.

Everything that a template shows is escaped, and before that made safe to show: control characters and characters that
reorder text are written as escapes, passwords in URLs are masked. The policy in the page's head lets a browser run this
script and use this style, known by their hashes, and load nothing.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perfbisect import __version__
from perfbisect.wording import quantities
from perfbisect.wording.text import safe

TEMPLATES = Path(__file__).parent / "templates"


def with_code(text: str) -> Markup:
    """A sentence with the names in it, which are between backticks, as code; as it is where these are no pairs."""
    parts = safe(text).split("`")
    if len(parts) % 2 == 0:
        return Markup.escape(safe(text))
    marked = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup("").join(marked)


FILTERS: Mapping[str, Callable[..., str]] = {
    "with_code": with_code,
    "moment": quantities.moment,
    "count": quantities.count,
    "duration": quantities.duration,
}


def render(template: str, *, index: str = "", **values: object) -> str:
    """The page of a template; ``index`` is the address of the page that lists all, if there is one."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{digest(style)}'; script-src '{digest(script)}'"
    )
    return (
        environment()
        .get_template(template)
        .render(**values, index=index, style=style, script=script, policy=Markup(policy), version=__version__)
    )


@cache
def environment() -> Environment:
    """The templates' settings."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    return made


def visible(value: Any) -> Any:
    """A value as a template may show it: text is made safe; what is markup already stays."""
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def asset(name: str) -> Markup:
    """A style sheet or a script of ours."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def digest(content: str) -> str:
    """The hash by which a content security policy knows an inline style or script."""
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
