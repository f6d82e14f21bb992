"""What the recipe for Debian's source package refuses to build; tests/e2e has the hunt with what it builds."""

import shutil
import subprocess
from pathlib import Path

import pytest

CONFIGURE = Path(__file__).parents[2] / "builders" / "postgres-debian" / "configure"


def configure(source: Path) -> str:
    """What the recipe says when it fails."""
    done = subprocess.run(
        [CONFIGURE, source, source.parent / "prefix"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode
    return done.stderr


def test_a_tree_that_is_no_source_package_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "configure"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/configured\n")
    script.chmod(0o755)
    assert configure(tmp_path / "source") == "error: this is no source package of Debian: there is no debian/rules\n"
    assert not (tmp_path / "configured").exists()


@pytest.mark.tools
@pytest.mark.skipif(
    not (shutil.which("dpkg-source") and shutil.which("dh_autoreconf")),
    reason="Debian's tools are not here: apt-get install dpkg-dev dh-autoreconf",
)
def test_rules_that_would_install_elsewhere_are_not_followed(tmp_path: Path) -> None:
    """As those of another package, or of a release whose rules name their variables otherwise."""
    source = tmp_path / "source"
    for folder in ("debian/source", "src", "build/src"):
        (source / folder).mkdir(parents=True)
    (source / "debian/source/format").write_text("3.0 (quilt)\n")
    (source / "debian/control").write_text(
        "Source: other\nMaintainer: Test <test@example.org>\nBuild-Depends: debhelper-compat (= 13)\n\n"
        "Package: other\nArchitecture: any\nDescription: other\n"
    )
    (source / "debian/changelog").write_text(
        "other (1-1) unstable; urgency=low\n\n  * All.\n\n -- Test <test@example.org>  Sun, 02 Jan 2022 03:04:05 +0000\n"
    )
    (source / "debian/rules").write_text(
        "override_dh_auto_configure:\n\techo 'prefix := /usr' >build/src/Makefile.global\n"
    )
    assert "error: debian/rules does not configure with CONFIGURE_FLAGS" in configure(source)
