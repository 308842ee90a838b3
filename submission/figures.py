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


def stacked_bar(pieces: Sequence[Piece], says: str) -> str:
    """One horizontal bar whose pieces' shares add up to 1; pieces from 7% on carry their percentage."""
    drawn, left = [], 0.0
    for piece in pieces:
        middle = left + piece.amount / 2
        text = (
            _text(f"{middle:.2%}", 28, f"{piece.amount:.0%}", f"on {piece.style}")
            if piece.amount >= 0.07
            else ""
        )
        drawn.append(
            f'<g><title>{escape(piece.title)}</title><rect class="{piece.style}" x="{left:.2%}" '
            f'width="{piece.amount:.2%}" height="44"/>{text}</g>'
        )
        left += piece.amount
    label = escape(says)
    return f'<svg class="bar" role="img" aria-label="{label}" width="100%" height="44">{"".join(drawn)}</svg>'


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
