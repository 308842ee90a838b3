"""Pictures as inline SVG, drawn in percent of the width and pixels of height.

Percentages keep text at its size on a phone and on a wall, without scripts; colours are classes, so that
the page's style sheet decides on light and dark. Every figure carries a sentence for screen readers.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple, TypeVar

HEIGHT = 200
HEIGHT_PLANE = 300

T = TypeVar("T")


class Point(NamedTuple):
    x: float
    y: float
    top: str
    """What is written above the plot at this place; the epoch."""
    title: str


class Piece(NamedTuple):
    """A coloured part of a bar: style class, share (or height) and what the pointer shows."""

    style: str
    amount: float
    title: str


class Mark(NamedTuple):
    """A point of a plane: the letter beside it, its style class, what the pointer shows, and its spread."""

    x: float
    y: float
    letter: str
    style: str
    title: str
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None


class Column(NamedTuple):
    """A bar with the interval of its amount: name below, what is written above, and what the pointer shows."""

    name: str
    amount: float
    interval: tuple[float, float]
    style: str
    top: str
    title: str


class Axis(NamedTuple):
    """A logarithmic axis; see :func:`log_axis`."""

    low: float
    high: float
    ticks: tuple[float, ...]
    title: str
    label: Callable[[float], str]

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one; what lies outside is held at the edge."""
        inside = min(max(value, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)


class Level(NamedTuple):
    """The line y = ``constant`` · x."""

    constant: float
    label: str

    def inside(self, x: Axis, y: Axis) -> tuple[float, float] | None:
        """Where on x it enters and leaves the axes; None where it does not pass."""
        left, right = max(x.low, y.low / self.constant), min(x.high, y.high / self.constant)
        return (left, right) if left < right else None


def stacked_bar(pieces: Sequence[Piece], says: str, height: int = 44) -> str:
    """One horizontal bar whose pieces' shares add up to 1; pieces from 7% on carry their percentage."""
    drawn, left = [], 0.0
    for piece in pieces:
        middle = left + piece.amount / 2
        text = (
            _text(f"{middle:.2%}", height // 2 + 6, f"{piece.amount:.0%}", f"on {piece.style}")
            if piece.amount >= 0.07
            else ""
        )
        drawn.append(
            f'<g><title>{escape(piece.title)}</title><rect class="{piece.style}" x="{left:.2%}" '
            f'width="{piece.amount:.2%}" height="{height}"/>{text}</g>'
        )
        left += piece.amount
    kind = f'class="bar" role="img" aria-label="{escape(says)}"'
    return f'<svg {kind} width="100%" height="{height}">{"".join(drawn)}</svg>'


def curve(
    points: Sequence[Point],
    says: str,
    *,
    target: float,
    target_label: str,
    x_label: Callable[[float], str],
    x_ticks: Sequence[float],
    shaded: Sequence[tuple[float, float, str]] = (),
) -> str:
    """A line through ``points`` with a dashed target line; ``shaded`` are spans of x with their names."""
    finite = [p for p in points if math.isfinite(p.y)]
    left, right = min(0.0, *(p.x for p in points)), max(1e-9, *(p.x for p in points), *x_ticks)
    values = [p.y for p in finite] + [target]
    pad = (max(values) - min(values)) * 0.08 or abs(target) * 0.1 or 1.0
    low, high = min(values) - pad, max(values) + pad

    def x(value: float) -> str:
        return f"{(value - left) / (right - left):.2%}"

    def y(value: float) -> str:
        return f"{HEIGHT * (high - value) / (high - low):.1f}"

    body = []
    for start, stop, name in shaded:
        width = f"{(stop - start) / (right - left):.2%}"
        body.append(
            f'<rect class="shade" x="{x(start)}" width="{width}" height="{HEIGHT}">'
            f"<title>{escape(name)}</title></rect>"
        )
    body += _y_axis(ticks(low, high), y)
    body += [_text(x(tick), HEIGHT + 18, x_label(tick)) for tick in x_ticks]
    body += [_text(x(p.x), -8, p.top, "top") for p in _thinned(points, 8)]
    body.append(f'<line class="target" x1="0%" x2="100%" y1="{y(target)}" y2="{y(target)}"/>')
    body.append(
        f'<text class="target" x="0%" y="{float(y(target)) - 6:.1f}" dx="6">{escape(target_label)}</text>'
    )
    body += [
        f'<line class="curve" x1="{x(a.x)}" y1="{y(a.y)}" x2="{x(b.x)}" y2="{y(b.y)}"/>'
        for a, b in pairwise(finite)
    ]
    body += [
        f'<circle class="curve" cx="{x(p.x)}" cy="{y(p.y)}" r="3.5"><title>{escape(p.title)}</title></circle>'
        for p in finite
    ]
    return _plot(body, says)


def bars(columns: Sequence[tuple[str, Sequence[Piece]]], says: str, y_label: Callable[[float], str]) -> str:
    """One column each, of stacked pieces whose amounts are heights; the axis starts at zero."""
    tallest = max((sum(p.amount for p in pieces) for _, pieces in columns), default=0.0) or 1.0
    scale = ticks(0.0, tallest * 1.08)
    high = max(tallest * 1.05, scale[-1])

    def y(value: float) -> str:
        return f"{HEIGHT * (1 - value / high):.1f}"

    slot = 1 / len(columns)
    width = slot * (0.62 if len(columns) > 3 else 0.3)
    shown = {name for name, _ in _thinned(columns, 10)}
    body = _y_axis(scale, y, y_label)
    for index, (name, pieces) in enumerate(columns):
        middle, below = (index + 0.5) * slot, 0.0
        for piece in pieces:
            top = below + piece.amount
            body.append(
                f'<rect class="{piece.style}" x="{middle - width / 2:.2%}" width="{width:.2%}" y="{y(top)}" '
                f'height="{HEIGHT * piece.amount / high:.1f}"><title>{escape(piece.title)}</title></rect>'
            )
            below = top
        if name in shown:
            body.append(_text(f"{middle:.2%}", HEIGHT + 18, name))
    return _plot(body, says)


def whisker_bars(columns: Sequence[Column], says: str, y_label: Callable[[float], str]) -> str:
    """One bar each, from zero, with a whisker over its interval."""
    tallest = max((max(c.amount, c.interval[1]) for c in columns), default=0.0) or 1.0
    scale = ticks(0.0, tallest * 1.08)
    high = max(tallest * 1.05, scale[-1])

    def y(value: float) -> str:
        return f"{HEIGHT * (1 - value / high):.1f}"

    slot = 1 / max(len(columns), 2)
    body = _y_axis(scale, y, y_label)
    for index, column in enumerate(columns):
        middle, width = (index + 0.5) * slot, slot * 0.5
        low, top = column.interval
        body.append(
            f'<g><title>{escape(column.title)}</title><rect class="bar {column.style}" '
            f'x="{middle - width / 2:.2%}" width="{width:.2%}" y="{y(column.amount)}" '
            f'height="{HEIGHT * column.amount / high:.1f}"/>'
            f'<line class="whisker" x1="{middle:.2%}" x2="{middle:.2%}" y1="{y(low)}" y2="{y(top)}"/></g>'
        )
        body.append(_text(f"{middle:.2%}", float(y(top)) - 6, column.top, "top"))
        body.append(_text(f"{middle:.2%}", HEIGHT + 18, column.name))
    return _plot(body, says)


def plane(
    marks: Sequence[Mark],
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    says: str,
    *,
    x_axis: Axis,
    y_axis: Axis,
    levels: Sequence[Level] = (),
) -> str:
    """Points on two logarithmic axes, each with a letter; ``lines`` are a style class and the points they
    join; on each of ``levels`` the ratio of the two axes is constant."""

    across = x_axis.place

    def down(value: float) -> float:
        return HEIGHT_PLANE * (1 - y_axis.place(value))

    body = _y_axis(y_axis.ticks, lambda value: f"{down(value):.1f}", y_axis.label)
    for tick in x_axis.ticks:
        at = f"{across(tick):.2%}"
        body.append(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="{HEIGHT_PLANE}"/>')
        body.append(_text(at, HEIGHT_PLANE + 18, x_axis.label(tick)))
    body.append(_text("50%", HEIGHT_PLANE + 38, x_axis.title, "axis"))
    body.append(f'<text class="axis" x="-48" y="-12">{escape(y_axis.title)}</text>')
    for level in levels:
        ends = level.inside(x_axis, y_axis)
        if ends is None:
            continue
        left, right = (f"{across(x):.2%}" for x in ends)
        low, high = (down(level.constant * x) for x in ends)
        body.append(
            f'<line class="level" x1="{left}" x2="{right}" y1="{low:.1f}" y2="{high:.1f}"/>'
            f'<text class="level" x="{right}" y="{high + 13:.1f}" dx="-4" text-anchor="end">'
            f"{escape(level.label)}</text>"
        )
    for style, points in lines:
        body += [
            f'<line class="join {style}" x1="{across(a[0]):.2%}" y1="{down(a[1]):.1f}" '
            f'x2="{across(b[0]):.2%}" y2="{down(b[1]):.1f}"/>'
            for a, b in pairwise(points)
        ]
    for mark in marks:
        x, y = f"{across(mark.x):.2%}", f"{down(mark.y):.1f}"
        whiskers = ""
        if mark.x_range:
            left, right = (f"{across(end):.2%}" for end in mark.x_range)
            whiskers += f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        if mark.y_range:
            bottom, top = (f"{down(end):.1f}" for end in mark.y_range)
            whiskers += f'<line x1="{x}" x2="{x}" y1="{bottom}" y2="{top}"/>'
        radius = 7 if "hollow" in mark.style else 5  # a ring is seen around a dot at the same place
        body.append(
            f'<g class="mark {mark.style}">{whiskers}<circle cx="{x}" cy="{y}" r="{radius}"/>'
            f"<title>{escape(mark.title)}</title></g>"
        )
    body += _letters(marks, levels, x_axis, y_axis)
    return (
        f'<div class="plot plane"><svg role="img" aria-label="{escape(says)}" width="100%" '
        f'height="{HEIGHT_PLANE}">{"".join(body)}</svg></div>'
    )


_NOMINAL = 430
"""Pixels that a plane is about wide, to keep its letters apart; places are in percent of the real width."""


def _letters(marks: Sequence[Mark], levels: Sequence[Level], x_axis: Axis, y_axis: Axis) -> list[str]:
    """The letters beside their marks: on the first of four sides where nothing else is."""
    places: dict[tuple[float, float], list[str]] = {}
    for mark in marks:
        if not mark.letter:
            continue
        x, y = x_axis.place(mark.x), HEIGHT_PLANE * (1 - y_axis.place(mark.y))
        # Marks that lie on one another share a place: whose letter is whose could not be told.
        near = ((a, b) for a, b in places if abs(a - x) * _NOMINAL < 9 and abs(b - y) < 9)
        places.setdefault(next(near, (x, y)), []).append(mark.letter)
    taken = [(x * _NOMINAL - 6, y - 6, x * _NOMINAL + 6, y + 6) for x, y in places]
    for level in levels:
        if ends := level.inside(x_axis, y_axis):
            right = x_axis.place(ends[1]) * _NOMINAL
            top = HEIGHT_PLANE * (1 - y_axis.place(level.constant * ends[1]))
            taken.append((right - 6.5 * len(level.label), top, right, top + 16))
    drawn = []
    # Single letters first, for they are to be found.
    for (x, y), letters in sorted(places.items(), key=lambda place: (len(place[1][0]), place[0])):
        known = list(dict.fromkeys(letters))
        text = " ".join(known if len(known) <= 4 else [*known[:3], f"+{len(known) - 3}"])
        width, across = 9 * len(text), x * _NOMINAL
        sides = []
        for dy in (-8, 19):
            sides.append(("start", 9, dy, (across + 9, y + dy - 11, across + 9 + width, y + dy + 2)))
            sides.append(("end", -9, dy, (across - 9 - width, y + dy - 11, across - 9, y + dy + 2)))
        free = [
            side for side in sides if side[3][2] <= _NOMINAL and not any(_meet(side[3], t) for t in taken)
        ]
        anchor, dx, dy, box = (free or sides)[0]
        taken.append(box)
        drawn.append(
            f'<text class="letter" x="{x:.2%}" y="{y + dy:.1f}" dx="{dx}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )
    return drawn


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def levels(x: Axis, y: Axis, label: Callable[[float], str], unit: float = 1.0) -> list[Level]:
    """At most five level lines that cross a good part of the plane: y/x is ``unit`` times a round number,
    which ``label`` writes."""
    first, last = y.low / x.high / unit, y.high / x.low / unit
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    found = []
    for factor in [f * 10.0**n for n in decades for f in (1, 2, 5)]:
        level = Level(factor * unit, label(factor))
        ends = level.inside(x, y)
        if ends and x.place(ends[1]) - x.place(ends[0]) > 0.3:
            found.append(level)
    return list(_thinned(found, 5))


def log_axis(
    values: Sequence[float], title: str, label: Callable[[float], str], base: int = 10, room: float = 1.5
) -> Axis:
    """A logarithmic axis around positive ``values``, with a factor of ``room`` on either side, and ticks at
    powers of two (``base`` 2) or at 1, 2 and 5 times powers of ten."""
    low, high = min(values) / room, max(values) * room
    if base == 2:
        marks = [2.0**n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [factor * 10.0**n for n in decades for factor in (1, 2, 5)]
        if high / low > 300:
            marks = [10.0**n for n in decades]
        marks = [mark for mark in marks if low <= mark <= high]
        if len(marks) < 3:
            marks = [mark for mark in ticks(low, high) if mark > 0]
    return Axis(low, high, tuple(_thinned(marks, 6)), title, label)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    if not high > low:  # a clock that was set back
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _plot(body: Sequence[str], says: str) -> str:
    return (
        f'<div class="plot"><svg role="img" aria-label="{escape(says)}" width="100%" height="{HEIGHT}">'
        f"{''.join(body)}</svg></div>"
    )


def _y_axis(
    values: Sequence[float], y: Callable[[float], str], label: Callable[[float], str] = "{:.4g}".format
) -> list[str]:
    lines = []
    for value in values:
        at = y(value)
        lines.append(f'<line class="grid" x1="0%" x2="100%" y1="{at}" y2="{at}"/>')
        lines.append(f'<text x="-8" y="{float(at) + 4:.1f}" text-anchor="end">{escape(label(value))}</text>')
    return lines


def _text(x: str, y: float, text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _thinned(items: Sequence[T], most: int) -> Sequence[T]:
    """At most ``most`` of the items, evenly spaced, the last one always among them."""
    step = math.ceil(len(items) / most) or 1
    return [item for index, item in enumerate(items) if (len(items) - 1 - index) % step == 0]
