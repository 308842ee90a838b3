"""What all tests need before a framework is imported."""

import os

from hypothesis import settings

# As mlhpc.run sets it: on CPUs for which TensorFlow would leave oneDNN out, its own pooling has wrong gradients.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# Two pytest workers on two cores, each of which starts runs of two ranks: with a thread for every core in each of
# these, most of the time would go into waiting for one another.
for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
    os.environ.setdefault(name, "1")

# No test reads the clock: on a busy machine an example of a millisecond takes half a second.
settings.register_profile("mlhpc", deadline=None)
settings.load_profile("mlhpc")
