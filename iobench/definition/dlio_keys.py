"""The keys of DLIO's workload files: ``dlio_keys.toml``."""

import tomllib
from pathlib import Path

Keys = tuple[str, ...]
_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
USED: dict[str, set[str]] = {table: set(keys) for table, keys in _FILE["used"].items()}
NO_EFFECT: dict[str, set[str]] = {table: set(keys) for table, keys in _FILE["no_effect"].items()}
TABLES, NUMBERS, WORDS, OWN_LAYOUT = (
    frozenset[str](_FILE[name]) for name in ("tables", "numbers", "words", "own_layout")
)
FORMATS: dict[str, str] = _FILE["formats"]
DATATYPES: dict[str, int] = _FILE["datatypes"]
ORIGIN: dict[Keys, Keys] = {
    tuple(ours.split(".")): tuple(theirs.split(".")) for ours, theirs in _FILE["origin"].items()
}
