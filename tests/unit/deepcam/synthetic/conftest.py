"""Samples of simulated weather."""

import numpy as np
import numpy.typing as npt
import pytest
from helpers.weather_samples import COLUMNS, ROWS

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.synthetic.simulate import simulate


@pytest.fixture(scope="module")
def samples() -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]]:
    return [simulate(Simulation(), ROWS, COLUMNS, number) for number in range(24)]
