"""The registry ``papers.toml``: every figure and table with data of the five papers.

The file begins with a description of its keys. Quotes are words of the papers, verbatim but for white space.
"""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mlhpc.common.pages.text import slug
from mlhpc.errors import UserError, did_you_mean


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Number(_Entry):
    """A number that the paper prints, in the words ``quote``. ``ours``: the expression of this suite's value;
    ``tolerance``: its largest relative deviation from the printed one, None if the two are not the same quantity
    and only shown beside each other."""

    name: str
    printed: float
    unit: str = ""
    quote: str
    ours: str = ""
    tolerance: float | None = Field(None, ge=0, le=0.5)

    @property
    def compared(self) -> bool:
        """Whether its value takes part in the verdict."""
        return self.tolerance is not None


class Trend(_Entry):
    """What the paper ``says`` in words about order or direction, and the expression that must be true for it."""

    says: str
    test: str


class Figure(_Entry):
    """A figure or table. ``run``: commands of laptop size by the name of their JSON in expressions; ``full``: the
    command at the paper's size; ``given``: lists of numbers that the paper prints, and ``let``: expressions, by
    their name in others; ``logs``: it reads the results of round 0.7; ``note``: what limits the comparison;
    ``reason``: of a contradiction; ``curves``: expressions of lists of [x, y] by name."""

    paper: str
    label: str
    shows: str
    quotes: tuple[str, ...] = Field(min_length=1)
    kind: Literal["numbers", "picture"] = "numbers"
    needs: Literal["", "device", "cluster"] = ""
    modelled: bool = False
    run: dict[str, str] = {}
    full: str = ""
    given: dict[str, list[float]] = {}
    let: dict[str, str] = {}
    logs: bool = False
    number: tuple[Number, ...] = ()
    trend: tuple[Trend, ...] = ()
    axes: tuple[str, str] = ("", "")
    curves: dict[str, str] = {}
    note: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """Name of its files."""
        return name_of(self.paper, self.label)

    @property
    def basis(self) -> str:
        """A digest of all that its values follow from; not of what the paper prints."""
        asked = [(number.name, number.ours) for number in self.number if number.ours]
        tests = [(trend.says, trend.test) for trend in self.trend]
        content = json.dumps([self.run, self.given, self.let, asked, tests, self.curves], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    @property
    def command(self) -> str:
        """The call that shows it."""
        return f'mlhpc papers {self.paper} "{self.label}"'


def name_of(paper: str, label: str) -> str:
    """Name of the files of a figure."""
    return f"{paper}-{slug(label)}"


class Registry(_Entry):
    """``papers``: title, authors and year by the short name; ``features``: by name, what the suite has of features
    that the papers describe without showing values."""

    papers: dict[str, str]
    features: dict[str, str]
    figure: tuple[Figure, ...]


@cache
def registry() -> Registry:
    """The registry that is part of the suite."""
    text = resources.files("mlhpc.papers").joinpath("papers.toml").read_text("utf-8")
    return Registry.model_validate(tomllib.loads(text))


def figures_of(paper: str | None, label: str | None) -> Sequence[Figure]:
    """All figures, those of a ``paper``, or the one with a ``label``. Raises UserError for an unknown name."""
    found = registry()
    if paper is not None and paper not in found.papers:
        raise UserError(f"no paper {paper!r}; {did_you_mean(paper, found.papers)}")
    chosen = [figure for figure in found.figure if paper in (None, figure.paper)]
    if label is None:
        return chosen
    labels = {figure.label.lower(): figure for figure in chosen}
    if label.lower() not in labels:
        raise UserError(f"no {label!r} in {paper}; {did_you_mean(label, [f.label for f in chosen])}")
    return [labels[label.lower()]]
