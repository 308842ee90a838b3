"""The registry ``papers.toml``: every figure and table of the five papers that shows data.

The file begins with a description of its keys. Quotes are verbatim from the papers, except for white space.
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
    """A number that a paper prints; ``quote`` is the passage. ``ours``: the expression that computes this suite's
    value; ``tolerance``: the largest allowed relative deviation from the printed value, None if the two are
    different quantities that are only shown beside each other."""

    name: str
    printed: float
    unit: str = ""
    quote: str
    ours: str = ""
    tolerance: float | None = Field(None, ge=0, le=0.5)


class Trend(_Entry):
    """A statement about order or direction that a paper makes in words (``says``), and the expression that must be
    true if this suite's values agree (``test``)."""

    says: str
    test: str


class Figure(_Entry):
    """A figure or table of a paper. ``run``: commands that a laptop can run, by the name of their JSON output in
    expressions; ``full``: the command at the paper's size; ``given``: lists of numbers that the paper prints, by
    name; ``let``: expressions, by the name under which other expressions use them; ``logs``: whether the results
    of round 0.7 are read; ``note``: what limits the comparison; ``reason``: why the values contradict the paper;
    ``curves``: expressions for lists of [x, y], by name."""

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
        """The name, without suffix, of the figure's files."""
        return name_of(self.paper, self.label)

    @property
    def basis(self) -> str:
        """A digest of everything that determines this suite's values of the figure. What the paper prints is not
        included."""
        asked = [(number.name, number.ours) for number in self.number if number.ours]
        tests = [(trend.says, trend.test) for trend in self.trend]
        content = json.dumps([self.run, self.given, self.let, asked, tests, self.curves], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    @property
    def command(self) -> str:
        """The command that shows the figure."""
        return f'mlhpc papers {self.paper} "{self.label}"'


def name_of(paper: str, label: str) -> str:
    """The name, without suffix, of the files that belong to a figure."""
    return f"{paper}-{slug(label)}"


class Registry(_Entry):
    """The contents of ``papers.toml``. ``papers``: title, authors and year of each paper, by its short name;
    ``features``: for each feature that the papers describe without showing values, what this suite offers."""

    papers: dict[str, str]
    features: dict[str, str]
    figure: tuple[Figure, ...]


@cache
def registry() -> Registry:
    """The registry included in the suite."""
    text = resources.files("mlhpc.papers").joinpath("papers.toml").read_text("utf-8")
    return Registry.model_validate(tomllib.loads(text))


def figures_of(paper: str | None, label: str | None) -> Sequence[Figure]:
    """All figures, the figures of one ``paper``, or the figure with a ``label``. Raises UserError for an unknown
    name."""
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
