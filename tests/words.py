"""Words to avoid in documents and messages, with replacements (`.venv/bin/python tests/words.py` in `make lint`).

The check reads documents without code, and the texts that modules may print: strings with a blank, and helps of verbs.
CONTRIBUTING.md has examples, docs/architecture.md the glossary.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BETTER = {  # a pattern → what to write
    r"\bbut for\b": "except",
    r"\b(?:taken|measured|made|runs?|rounds?) in turns\b": "interleaved",
    r"\bmeasured at the same time\b": "paired",
    r"\bfresh layouts?\b": "randomized layout",
    r"\bset aside\b": "excluded; of a run: an outlier",
    r"\b(?:is|are|was|were) told\b": "a warning says; is printed",
    r"\bso many\b": "the number, or `--option`",
    r"\b[Oo]ne (?:that|which|whose|of which|without|with a)\b": "the noun in place of “one”",
    r"\b(?:that|those) of (?:which|what|those|that|it|them)\b": "the noun",
    r"\bwhat of\b": "the part of",
    r"(?:^|(?<=[.:!?] ))Where (?!(?:is|are|it|the file|does)\b)": "If",
    r"\bas they are linked\b": "in the usual layout",
    r"\bone another\b": "each other",
    r"\bnamely\b": "nothing, or a colon",
    r"\bin order to\b": "to",
    r"\butili[sz]e": "use",
}
RULES = [(re.compile(pattern, re.MULTILINE), better) for pattern, better in BETTER.items()]
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def documents() -> Iterator[tuple[Path, int, str]]:
    """Each paragraph of the documents, without code: file, line, text."""
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ):
        text = CODE.sub(lambda code: "\n" * code[0].count("\n"), page.read_text())
        if page.name == "CONTRIBUTING.md":  # its table has examples of bad sentences
            text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
        line = 1
        for paragraph in re.split(r"(\n\s*\n)", text):
            if paragraph.strip():
                yield page, line, re.sub(r"\s+", " ", paragraph).strip()
            line += paragraph.count("\n")


def messages() -> Iterator[tuple[Path, int, str]]:
    """Each text that the package may print: file, line, text."""
    for module in sorted((ROOT / "bisect" / "perfbisect").rglob("*.py")):
        tree = ast.parse(module.read_text())
        documented = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False)
        ]
        helps = [
            node for node in documented if module.parent.name == "commands" and getattr(node, "decorator_list", None)
        ]
        silent = {node.body[0].value for node in documented if node not in helps}  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
                and node not in silent
            ):
                yield module, node.lineno, node.value


def main() -> int:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: “{match[0]}”: better {better}\n    {text[max(0, match.start() - 60) : match.end() + 60]}"
        for source in (documents, messages)
        for file, line, text in source()
        for rule, better in RULES
        for match in rule.finditer(text)
    ]
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
