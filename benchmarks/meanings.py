"""Units and meanings of settings (``meanings.toml``), for ``mlhpc presets BENCHMARK PRESET --explain``."""

import tomllib
from functools import cache
from pathlib import Path


@cache
def _tables() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("meanings.toml").read_text("utf-8"))


def meaning(key: str) -> str:
    """The meaning of the setting ``key`` (a dotted name); empty if ``meanings.toml`` has none."""
    return _of(key, "meanings")


def unit(key: str) -> str:
    """The unit of the setting ``key`` (a dotted name); empty for a pure number, a name or a switch."""
    return _of(key, "units")


def _of(key: str, table: str) -> str:
    texts = _tables()[table]
    plain = key.rpartition(".")[2].removeprefix("lars_").removeprefix("sgd_")
    return texts.get(key) or texts.get(plain, "")
