"""What all tests need before a framework is imported."""

import os

# As mlhpc.run sets it: on CPUs for which TensorFlow would leave oneDNN out, its own pooling has wrong gradients.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
