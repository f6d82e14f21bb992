"""The table of verbs in docs/commands.md, as the program knows them; options are those of `bisect VERB --help`.

`.venv/bin/python tests/reference.py` writes it; tests/test_docs.py says when it is stale.
"""

import re
from pathlib import Path

from perfbisect.cli.main import VERBS

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
BLOCK = re.compile(r"(?<=<!-- written by tests/reference.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """The page with its table as it is now."""
    rows = "\n".join(f"| `bisect {verb}` | {text} |" for verb, text in VERBS.items())
    return BLOCK.sub(lambda _: f"\n| command | |\n|---|---|\n{rows}\n\n", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
