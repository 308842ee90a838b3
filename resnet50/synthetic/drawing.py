"""Draws images whose classes differ in arrangement, outline, texture and colour, on cluttered backgrounds.

Each class has a look: an outline (a circle with a few waves around it), a texture inside it (stripes, checks,
dots, rings, blotches or none, at some scale), and the hues of its rim and of its core. Classes come in pairs that
differ only in the order of the two hues. Statistics of a whole image (colours, spectra, textures) therefore
identify the pair but not the class, and a network has to recognise which hue surrounds the other. An image shows
one object of its class, with random position, rotation, scale and lighting, on a mottled background among smaller
objects of other classes.
"""

import colorsys
import io
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Picture = npt.NDArray[np.float32]
TEXTURES = ("stripes", "checks", "dots", "rings", "blotches", "plain")
# Shapes of photographs (width and height relative to the longer side) and their frequencies: mostly 4:3 and 3:2.
_SHAPES = ((1, 0.75), (0.75, 1), (1, 2 / 3), (2 / 3, 1), (1, 1))
_OFTEN = (0.47, 0.16, 0.17, 0.07, 0.13)
_STRAY = 0.15  # share of images with arbitrary dimensions
_GREY = 1 / 64
_HUES = 4
_OTHERS = 72  # number of classes for the smaller objects: all pairs of hues with all textures


class Look(NamedTuple):
    """The properties that the images of a class share. Hues range from 0 to 1; ``waves`` are tuples of (number
    around the circle, height, phase)."""

    waves: tuple[tuple[int, float, float], ...]
    texture: str
    scale: float
    rim: float
    core: float


def class_look(seed: int, number: int) -> Look:
    """The look of class ``number`` in the data set with this ``seed``. Classes 2n and 2n + 1 differ only in the
    order of their hues: the rim of one has the hue of the other's core."""
    pair, swapped = divmod(number, 2)
    rng = np.random.default_rng([seed, 1, pair])
    start = np.random.default_rng([seed, 2]).random()
    two_hues = list(combinations([(start + n / _HUES) % 1 for n in range(_HUES)], 2))
    rim, core = two_hues[pair % len(two_hues)]
    texture = TEXTURES[(pair + pair // len(two_hues)) % len(TEXTURES)]
    first = (int(rng.integers(2, 8)), float(rng.uniform(0.12, 0.4)), 0.0)
    second = (int(rng.integers(1, 6)), float(rng.uniform(0, 0.15)), float(rng.uniform(0, 2 * np.pi)))
    scale = float(rng.uniform(0.16, 0.34))
    return Look((first, second), texture, scale, *((core, rim) if swapped else (rim, core)))


def draw(seed: int, number: int, sample: int, side: int) -> bytes:
    """Draw image ``sample``, of class ``number``, and return it as a JPEG file; its longer side usually has
    ``side`` pixels.

    The random numbers of an image depend only on ``(seed, sample)``, and those of its class on ``(seed, number)``.
    """
    rng = np.random.default_rng([seed, 3, sample])
    width, height = _SHAPES[rng.choice(len(_SHAPES), p=_OFTEN)]
    if rng.random() < _STRAY:
        width, height = np.exp(rng.normal((-0.2, -0.4), 0.3))
    columns, rows = (max(16, round(side * edge)) for edge in (width, height))
    picture = _ground(rng, rows, columns)
    short = min(rows, columns)
    for _ in range(rng.integers(2, 7)):
        other = class_look(seed, int(rng.integers(_OTHERS)))
        _paint(rng, picture, other, rng.uniform(0.05, 0.15) * short, rng.uniform(0, 1, 2))
    _paint(rng, picture, class_look(seed, number), rng.uniform(0.25, 0.42) * short, rng.uniform(0.3, 0.7, 2))
    return _photograph(rng, picture)


def _ground(rng: np.random.Generator, rows: int, columns: int) -> Picture:
    """A background, [rows, columns, 3], in a colour of low saturation, with mottles of three sizes."""
    base = np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 0.45), rng.uniform(0.25, 0.8)))
    picture = np.full((rows, columns, 3), base * 255, np.float32)
    for cells, height in ((3, 45), (9, 28), (30, 16)):
        grid = rng.integers(0, 256, (cells, cells, 3), np.uint8)
        mottles = Image.fromarray(grid).resize((columns, rows), Image.Resampling.BICUBIC)
        picture += (np.asarray(mottles, np.float32) - 128) * np.float32(height * rng.uniform(0.3, 1) / 74)
    return picture


def _paint(
    rng: np.random.Generator, picture: Picture, look: Look, radius: float, at: npt.NDArray[np.float64]
) -> None:
    """Paint an object with a radius of ``radius`` pixels and its centre ``at`` [2] (as shares of height and width)
    over ``picture`` [rows, columns, 3]."""
    rows, columns, _ = picture.shape
    reach = int(radius * 1.6) + 2
    row, column = int(at[0] * rows), int(at[1] * columns)
    box = slice(max(0, row - reach), row + reach), slice(max(0, column - reach), column + reach)
    part = picture[box]
    y = (np.arange(part.shape[0], dtype=np.float32)[:, None] + box[0].start - row) / np.float32(radius)
    x = (np.arange(part.shape[1], dtype=np.float32)[None] + box[1].start - column) / np.float32(radius)
    turn = rng.uniform(0, 2 * np.pi)
    squeeze = rng.uniform(0.8, 1.25)
    u = np.float32(np.cos(turn) * squeeze) * x + np.float32(np.sin(turn) * squeeze) * y
    v = np.float32(-np.sin(turn) / squeeze) * x + np.float32(np.cos(turn) / squeeze) * y
    angle, distance = np.arctan2(v, u), np.hypot(u, v)
    outline = 1 + sum(
        np.float32(height) * np.cos(n * angle + np.float32(phase)) for n, height, phase in look.waves
    )
    inside, core = (
        np.clip((share * outline - distance) * np.float32(radius / 1.5), 0, 1)  # soft edge of a pixel or two
        for share in (1, np.float32(rng.uniform(0.55, 0.85)))
    )
    weave = _weave(rng, look, u, v, distance)
    light = rng.uniform(0.7, 1.0)
    colours = [
        np.array(
            colorsys.hsv_to_rgb(
                (hue + rng.normal(0, 0.04)) % 1, rng.uniform(0.55, 1), light * rng.uniform(0.75, 1)
            ),
            np.float32,
        )
        * 255
        for hue in (look.rim, look.core)
    ]
    shade = 1 + np.float32(rng.uniform(0, 0.3)) * (x * np.float32(np.cos(turn)) - y)  # light from one side
    shade *= 1 - np.float32(rng.uniform(0.3, 0.6)) * weave
    painted = (colours[0] + core[..., None] * (colours[1] - colours[0])) * shade[..., None]
    part += inside[..., None] * (painted - part)


def _weave(rng: np.random.Generator, look: Look, u: Picture, v: Picture, distance: Picture) -> Picture:
    """The darkness of the texture at each pixel, 0 to 1, of the shape of ``u``."""
    scale = np.float32(2 * np.pi / (look.scale * rng.uniform(0.85, 1.15)))
    phase = np.float32(rng.uniform(0, 2 * np.pi))
    if look.texture == "stripes":
        wave = np.sin(scale * u + phase)
    elif look.texture == "checks":
        wave = np.sin(scale * u + phase) * np.sin(scale * v) * 2
    elif look.texture == "dots":
        wave = np.sin(scale * u + phase) + np.sin(scale * v) - 1
    elif look.texture == "rings":
        wave = np.sin(scale * distance + phase)
    elif look.texture == "blotches":
        wave = sum(
            np.sin(
                scale * np.float32(0.5) * (np.float32(np.cos(a)) * u + np.float32(np.sin(a)) * v)
                + np.float32(p)
            )
            for a, p in rng.uniform(0, 2 * np.pi, (5, 2))
        )
    else:
        wave = np.full_like(u, -1)
    share: Picture = np.clip(wave * 4 + np.float32(0.5), 0, 1)
    return share


def _photograph(rng: np.random.Generator, picture: Picture) -> bytes:
    """``picture`` encoded as a JPEG file, after adding exposure and grain. The quality is 92 to 97 (96 in most of
    ImageNet), and one image in 64 is grey."""
    rows, columns, _ = picture.shape
    slope = rng.uniform(-0.25, 0.25, 2)
    light = (
        rng.uniform(0.8, 1.15)
        + slope[0] * np.linspace(-1, 1, rows)[:, None]
        + slope[1] * np.linspace(-1, 1, columns)
    )
    picture *= light[..., None].astype(np.float32)
    grain = np.float32(rng.uniform(4, 20))
    picture += grain * rng.standard_normal(picture.shape, np.float32)
    image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    if rng.random() < _GREY:
        image = image.convert("L")
    out = io.BytesIO()
    image.save(out, "JPEG", quality=int(rng.integers(92, 98)))
    return out.getvalue()
