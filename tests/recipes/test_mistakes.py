"""Recipes and settings with a mistake: the error names the file, the key, what was found, and what is allowed.

Mistakes and errors are in mistakes.txt, below the kind of file into which each is put. Of an error that ends with words
of Python, or with a new line, the beginning is there.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from labs import SUITE
from perfbisect.errors import RecipeError
from perfbisect.recipes.builder_reader import load_builders
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import load_hosts, load_leases
from perfbisect.recipes.workload import load_workloads

Write = Callable[[str, str], Path]

KINDS = re.split("^## ", Path(__file__).with_name("mistakes.txt").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("mistakes", KINDS, ids=lambda mistakes: mistakes.partition("\n")[0])
def test_a_mistake_is_named(write: Write, small: str, tmp_path: Path, mistakes: str) -> None:
    write("builders/small/builder.toml", small)
    write("workloads/tables/select.lua", "")
    kind, *blocks = mistakes.strip().split("\n\n")
    name, form, load = {
        "end of a builder": ("builders/wrong/builder.toml", small + "{}", load_builders),
        "beginning of a builder": ("builders/wrong/builder.toml", "{}\n" + small, load_builders),
        "suite": ("workloads/tables/suite.toml", SUITE + "{}", load_workloads),
        "host": ("hosts.toml", "[hosts.big]\n{}", load_hosts),
        "leases": ("hosts.toml", "{}", load_leases),
        "config": ("config.toml", "[shared]\n{}\n", load_configuration),
    }[kind]
    for block in blocks:
        mistake, sentence = block.split("\n→ ")
        file = write(name, form.replace("{}", mistake))
        with pytest.raises(RecipeError) as caught:
            load()
        said = str(caught.value).replace(str(tmp_path), "…").removeprefix(f"…/{file.relative_to(tmp_path)}: ")
        assert said == sentence or (said.startswith(sentence) and sentence[-1] not in ".?"), block
