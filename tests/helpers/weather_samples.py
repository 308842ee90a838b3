"""The grid and the channels of simulated weather."""

import numpy as np

from mlhpc.deepcam.data.hdf5 import CHANNELS
from mlhpc.deepcam.synthetic import sphere

ROWS, COLUMNS = 192, 288

GRID = sphere.grid(ROWS, COLUMNS)

LATITUDE = np.rad2deg(GRID.latitude[:, 0])

NUMBER = {name: number for number, name in enumerate(CHANNELS)}
