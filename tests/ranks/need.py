"""System programs that a test needs: it is skipped if they are missing, but never in CI."""

import os
import shutil

import pytest


def need(*programs: str) -> None:
    """Skip this test when one of ``programs`` is not installed; in CI, fail it."""
    missing = [program for program in programs if not shutil.which(program, path=search_path())]
    if missing and os.environ.get("CI"):
        pytest.fail(f"CI must have {', '.join(missing)}")
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


def search_path() -> str:
    """PATH with the folders of daemons, which users often lack."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
