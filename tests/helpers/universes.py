"""A cosmology and small universes."""

import numpy as np
import numpy.typing as npt

from mlhpc.cosmoflow.synthetic.cosmology import Cosmology
from mlhpc.cosmoflow.synthetic.simulate import REDSHIFTS

SCALES = [1 / (1 + z) for z in REDSHIFTS]

MIDDLE = Cosmology.from_unit([0, 0, 0, 0], 0.3)

Vector = npt.NDArray[np.float64]
