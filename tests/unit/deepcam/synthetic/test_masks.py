"""The masks of simulated weather, and what a sample depends on."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from helpers.weather_samples import COLUMNS, LATITUDE, NUMBER, ROWS
from scipy import ndimage

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.synthetic.simulate import simulate


def parts(mask: npt.NDArray[np.uint8], kind: int) -> Iterator[npt.NDArray[np.bool_]]:
    numbers, count = ndimage.label(mask == kind, np.ones((3, 3)))
    for number in range(1, count + 1):
        part = numbers == number
        if not part[:, [0, -1]].any():  # those across longitude 0 come in two
            yield part


def test_marked_cyclones_are_warm_lows_that_turn_as_their_hemisphere_does(
    samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]],
) -> None:
    seen, wetter = {-1: 0, 1: 0}, []
    for channels, mask in samples:
        value = {name: channels[..., number].astype(float) for name, number in NUMBER.items()}
        for part in parts(mask, 1):
            around = ndimage.binary_dilation(part, iterations=6) & ~ndimage.binary_dilation(
                part, iterations=3
            )
            centre = np.unravel_index(np.argmin(np.where(part, value["PSL"], np.inf)), part.shape)
            assert value["PSL"][centre] < value["PSL"][around].mean() - 400
            inside = (
                np.hypot(*np.ogrid[-centre[0] : ROWS - centre[0], -centre[1] : COLUMNS - centre[1]]) < 1.5
            )
            for name in ("T200", "T500"):
                assert value[name][inside].mean() > value[name][around].mean() + 0.3
            assert value["TMQ"][part].mean() > value["TMQ"][around].mean()
            wetter.append(value["PRECT"][part].mean() > value["PRECT"][around].mean())
            side = int(np.sign(LATITUDE[centre[0]]))
            assert abs(LATITUDE[centre[0]]) < 40
            # The circulation around the mask's edge is anticlockwise in the north.
            rows, columns = np.nonzero(part)
            turn = (columns - centre[1]) * value["V850"][part] - (rows - centre[0]) * value["U850"][part]
            assert side * turn.sum() > 0
            seen[side] += 1
    assert min(seen.values()) > 5 and np.mean(wetter) > 0.9


def test_marked_rivers_are_long_and_moist_and_flow_poleward(
    samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]],
) -> None:
    shapes, poleward, wetter = [], [], []
    for channels, mask in samples:
        vapour, v = (channels[..., NUMBER[name]].astype(float) for name in ("TMQ", "V850"))
        for part in parts(mask, 2):
            if (ndimage.binary_dilation(part) & (mask == 1)).any():
                continue  # a cyclone took its share of it
            rows, columns = np.nonzero(part)
            # Kilometres on the plane that touches the planet in the middle of it.
            middle = math.radians(LATITUDE[rows].mean())
            x = 111.2 * 360 / COLUMNS * (columns - columns.mean()) * math.cos(middle)
            y = 111.2 * (LATITUDE[rows] - LATITUDE[rows].mean())
            length = np.hypot(np.ptp(x), np.ptp(y))
            width = 111.2**2 * 180 / ROWS * 360 / COLUMNS * len(x) * math.cos(middle) / length
            assert length > 1800 and length > 1.8 * width
            shapes.append(np.sqrt(np.divide(*np.linalg.eigvalsh(np.cov(x, y))[::-1])))
            around = ndimage.binary_dilation(part, iterations=8) & ~ndimage.binary_dilation(
                part, iterations=2
            )
            wetter.append(vapour[part].mean() / vapour[around].mean())
            poleward.append((v[part] * np.sign(LATITUDE[rows])).mean())
    assert len(shapes) > 50 and np.median(shapes) > 3  # standard deviations along and across
    assert min(wetter) > 1.05 and np.median(wetter) > 1.2
    assert min(poleward) > 1 and np.median(poleward) > 8


def test_class_frequencies_are_those_of_the_published_set() -> None:
    # Of mlcommons/hpc: the loss weights of DeepCAM were made from them.
    published = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
    masks = [simulate(Simulation(), 384, 576, number)[1] for number in range(30)]
    frequencies = np.bincount(np.concatenate(masks, axis=None), minlength=3) / sum(
        mask.size for mask in masks
    )
    assert frequencies[0] == pytest.approx(published[0], abs=0.004)
    assert frequencies[1:] == pytest.approx(published[1:], rel=0.3)
    # Nearly every sample contains all classes, so guessing only background has an IoU of a third.
    assert np.mean([len(np.unique(mask)) == 3 for mask in masks]) > 0.9


def test_a_sample_comes_from_its_seed_and_number_alone() -> None:
    first = simulate(Simulation(), 32, 48, 5)
    simulate(Simulation(seed=3), 48, 64, 5)
    again = simulate(Simulation(test_samples=7), 32, 48, 5)
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
    for other in (simulate(Simulation(), 32, 48, 6), simulate(Simulation(seed=1), 32, 48, 5)):
        assert (
            not np.isclose(first[0][..., NUMBER["PSL"]], other[0][..., NUMBER["PSL"]], rtol=1e-6)
            .any(axis=1)
            .all()
        )


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (32, 48), (48, 32), (64, 128)])
def test_any_grid(rows: int, columns: int) -> None:
    for number in range(8):
        channels, mask = simulate(Simulation(), rows, columns, number)
        assert channels.shape == (rows, columns, 16) and channels.dtype == np.float32
        assert mask.shape == (rows, columns) and mask.dtype == np.uint8
        assert np.isfinite(channels).all() and set(np.unique(mask)) <= {0, 1, 2}


def test_storm_size_enlarges_storms() -> None:
    areas = []
    for size in (1.0, 2.5):
        masks = [simulate(Simulation(storm_size=size), 96, 144, number)[1] for number in range(30)]
        areas.append([np.mean([mask == kind for mask in masks]) for kind in (1, 2)])
    assert areas[1][0] > 1.5 * areas[0][0] and areas[1][1] > 1.2 * areas[0][1]
