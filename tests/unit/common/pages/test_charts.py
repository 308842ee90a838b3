"""The palette for colour-blind readers, the axes, and the content of a figure."""

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import pytest
from helpers.page import rows_of

from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.charts import DARK, PARTS, SERIES
from mlhpc.common.pages.plots import log_axis

# Machado, Oliveira, Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# table of severity 1.0, for linear RGB.
VISION = {
    "trichromat": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanope": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                  (-0.003882, -0.048116, 1.051998)),
    "deuteranope": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                    (-0.01182, 0.04294, 0.968881)),
    "tritanope": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                  (0.004733, 0.691367, 0.3039)),
}  # fmt: skip
# Björn Ottosson, "A perceptual color space for image processing" (2020): linear RGB to OKLab.
TO_LMS = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
          (0.0883024619, 0.2817188376, 0.6299787005))  # fmt: skip
TO_LAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
          (0.0259040371, 0.7827717662, -0.8086757660))  # fmt: skip
Vector = tuple[float, ...]


def times(matrix: tuple[Vector, ...], vector: Vector) -> Vector:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def linear(colour: str) -> Vector:
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def seen(colour: str, vision: str) -> Vector:
    """The colour in OKLab as seen with that vision."""
    light = (min(max(c, 0.0), 1.0) for c in times(VISION[vision], linear(colour)))
    return times(TO_LAB, tuple(math.cbrt(c) for c in times(TO_LMS, tuple(light))))


def nearest(colours: list[str], vision: str) -> float:
    """The smallest distance of two of the colours."""
    return min(math.dist(seen(a, vision), seen(b, vision)) for a, b in itertools.combinations(colours, 2))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_are_distinguishable_with_any_colour_vision(theme: int, vision: str) -> None:
    """0.1 in OKLab is five times a just noticeable difference (about 0.02)."""
    parts = {key: pair for key, pair in PARTS.items() if key != "training"}  # drawn where "step" is not
    assert nearest([pair[theme] for pair in SERIES], vision) > 0.1
    assert nearest([pair[theme] for pair in parts.values()], vision) > 0.1


def test_the_simulation_rejects_the_old_palette() -> None:
    """First-epoch excess and rest of earlier pages were one colour for deuteranopes."""
    assert (
        nearest(["#cc79a7", "#929aa5"], "deuteranope") < 0.02 < nearest(["#cc79a7", "#929aa5"], "trichromat")
    )


def contrast(a: str, b: str) -> float:
    """WCAG 2.2, 1.4.3 and 1.4.11."""
    light, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (a, b)),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast_with_its_background(theme: int) -> None:
    for key, pair in PARTS.items():
        assert contrast(charts.TEXT_ON[key][theme], pair[theme]) > 4.5, key
    for colour in (charts.INK, charts.SOFT, charts.ACCENT, charts.BAD):
        assert contrast(colour[theme], charts.CARD[theme]) > 4.5


def test_each_light_colour_has_one_dark_counterpart() -> None:
    """The page finds the dark colour by the light one."""
    pairs = {*SERIES, *PARTS.values(), *charts.TEXT_ON.values(), charts.INK, charts.SOFT, charts.LINE, charts.CARD,
             charts.ACCENT, charts.BAD}  # fmt: skip
    assert len({light for light, _ in pairs}) == len(pairs)
    assert dict(pairs) == DARK


def test_log_axes_have_round_ticks() -> None:
    """Powers of two, or round numbers without powers of ten; with a no-break space between thousands."""
    x, y = log_axis([64, 256], "units", base=2, room=2), log_axis([90, 20_000], "rate", room=1)
    assert (x.low, x.high) == (32, 512)
    assert x.fraction(128) == pytest.approx(0.5)
    rows = [{"x": 64, "y": 90, "series": "one"}, {"x": 256, "y": 20_000, "series": "one"}]
    svg = plots.lines(plots.on_axes(rows, x, y), "says", series=["one"]).svg
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert texts[: texts.index("512") + 1] == ["32", "64", "128", "256", "512"]
    assert {"100", "1,000", "10,000"} <= set(texts)
    assert not any("e+" in text or "00000" in text for text in texts)


def test_small_numbers_keep_their_digits() -> None:
    y = log_axis([0.0007, 0.02], "rate", room=1)
    rows = [{"x": 1, "y": 0.0007, "series": "one"}, {"x": 2, "y": 0.02, "series": "one"}]
    svg = plots.lines(plots.on_axes(rows, log_axis([1, 2], "n"), y), "says", series=["one"]).svg
    assert ">0.001<" in svg and ">0.01<" in svg


def test_axes_of_counts_label_whole_numbers_only() -> None:
    x, y = log_axis([1, 3], "ranks", base=2, room=1.3), log_axis([10, 20], "rate")
    rows = [{"x": count, "y": 10 * count, "series": "one"} for count in (1, 2, 3)]
    svg = plots.lines(plots.on_axes(rows, x, y), "says", series=["one"]).svg
    texts = re.findall(r">([^<>]+)</text>", svg.split(">ranks<")[0])
    assert {"1", "2"} <= set(texts) and not any("." in text for text in texts)


def test_level_lines_are_y_over_x() -> None:
    x, y = log_axis([64, 256], "units", base=2, room=2), log_axis([10, 1000], "rate", room=10)
    layers = [
        layer.to_dict(validate=False) for layer in plots.levels(x, y, [(100 / 128, "l"), (1e9, "outside")])
    ]
    # At x = 32 the line is at 25, at 512 at 400.
    assert rows_of(layers[0]) == [{"x": 32, "y": 25, "x2": 512, "y2": 400, "level": "l"}]
    assert [rows_of(layer) for layer in layers[1:]] == [[{"x": 512, "y": 400, "level": "l"}]] * 2


def figure_of(
    rows: list[dict[str, Any]], y_title: str = "loss", series: Sequence[str] = ("one",)
) -> charts.Figure:
    base = charts.chart_of(rows, x=alt.X("x:Q", title="epoch"), y=alt.Y("y:Q", title=y_title))
    return plots.lines(base, "alt <text>\x1b", series=series, title="A loss")


def test_a_figure_is_valid_json_with_alternative_text() -> None:
    spec = figure_of([{"x": 1, "y": 2.0}, {"x": 2, "y": math.nan}, {"x": 3, "y": math.inf}]).spec
    read = json.loads(json.dumps(spec, allow_nan=False))
    assert read["description"] == r"alt <text>\x1b" and read["width"] == "container"
    assert "loss" in {layer["encoding"]["y"].get("title") for layer in read["layer"]}


def test_the_static_picture_shows_the_titles_and_escapes_text() -> None:
    rows = [{"x": 1, "y": 2.0, "series": "<b>&"}, {"x": 2, "y": 1.0, "series": "<b>&"}]
    svg = figure_of(rows, y_title="loss <i>", series=["<b>&", "other"]).svg
    assert svg.startswith("<svg") and ">epoch</text>" in svg
    assert "loss &lt;i" in svg and "<b>" not in svg and "<i>" not in svg


def test_a_lone_surrogate_does_not_reach_the_renderer() -> None:
    assert figure_of([{"x": 1, "y": 1.0, "says": "\ud800"}]).svg.startswith("<svg")


def drawn_bars(write: Callable[[float], str] = str, **options: Any) -> charts.Figure:
    """Of two bars: a quarter and three quarters of 8 s; all of 2 s."""
    two = [
        plots.Bar("A  one", {"staging": 2.0, "rest": 6.0}),
        plots.Bar("B", {"staging": 0.0, "rest": 2.0}, "B two"),
    ]
    return plots.stacked_bars(
        two,
        "Time",
        parts={"staging": "Staging", "rest": "Rest"},
        measure=plots.Measure("min", write, 2.0),
        **options,
    )


def test_bars_have_the_sizes_and_shares_of_their_parts() -> None:
    figure = drawn_bars(write="{:g} s".format)
    assert figure.alt_text == "Time: A one: Staging 25.0%, Rest 75.0%; B: Rest 100.0%"
    rows = [row for row in rows_of(figure.spec) if "part" in row]
    assert [(row["part"], row["value"], row["says"]) for row in rows] == [
        ("Staging", 1.0, "A  one, Staging, 25.0%, 2 s"),
        ("Rest", 3.0, "A  one, Rest, 75.0%, 6 s"),
        ("Rest", 1.0, "B two, Rest, 100.0%, 2 s"),
    ]


def test_the_text_of_a_comparison_names_each_of_its_bars() -> None:
    """24 of them, with names as long as those of published sets."""
    named = [f"Some Site, system dgx-a100-{n}, 2 048 accelerators, median of ten runs" for n in range(24)]
    parts = {"staging": "Staging", "step": "Training steps", "data_wait": "Waiting", "rest": "Rest"}
    all_bars = [plots.Bar(name, dict.fromkeys(parts, 1.0)) for name in named]
    text = plots.stacked_bars(all_bars, "Time", parts=parts, measure=plots.Measure("s")).alt_text
    assert all(f"{name}: Staging 25.0%, " in text for name in named)


def test_shares_are_written_on_bars_that_show_shares() -> None:
    def labels(figure: charts.Figure) -> list[str]:
        return [row["label"] for row in rows_of(figure.spec) if "part" in row]

    assert labels(drawn_bars()) == ["", "", ""]
    assert labels(drawn_bars(relative=True)) == ["25%", "75%", "100%"]
    alone = plots.stacked_bars(
        [plots.Bar("", {"rest": 97.0, "step": 3.0})],
        "T",
        parts={"step": "Step", "rest": "Rest"},
        measure=plots.Measure("s"),
    )
    assert labels(alone) == ["", "97%"], "3% of a bar has no room for a number"


def test_columns_are_stacked_or_beside_each_other() -> None:
    rows = [{"x": "1", "y": 3.0, "part": "b"}, {"x": "1", "y": 4.0, "part": "a"}]
    for beside in (False, True):
        figure = plots.columns(
            rows,
            "says",
            titles=("x", "y"),
            colours={"a": PARTS["step"][0], "b": PARTS["rest"][0]},
            beside=beside,
        )
        heights = [float(h) for h in re.findall(r'<path d="M[\d.]+,[\d.]+h[\d.]+v([\d.]+)', figure.svg)][-2:]
        tops = [float(y) for y in re.findall(r'<path d="M[\d.]+,([\d.]+)h[\d.]+v', figure.svg)][-2:]
        assert heights[1] / heights[0] == pytest.approx(4 / 3, rel=0.01)
        ends = [top + height for top, height in zip(tops, heights, strict=True)]
        if beside:
            assert ends[0] == ends[1], "both stand on the axis"
        else:
            assert tops[1] == pytest.approx(ends[0], abs=0.02) or tops[0] == pytest.approx(ends[1], abs=0.02)
            assert ends[1] > ends[0], (
                "the first of the parts is at the bottom, whatever the order of the rows"
            )
