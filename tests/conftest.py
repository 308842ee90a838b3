"""What all tests need before a framework is imported."""

import os

from hypothesis import settings

# As mlhpc.run sets it: on CPUs for which TensorFlow would leave oneDNN out, its own pooling has wrong gradients.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# No test reads the clock: on a busy machine an example of a millisecond takes half a second.
settings.register_profile("mlhpc", deadline=None)
settings.load_profile("mlhpc")
