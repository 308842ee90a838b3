"""Settings beyond those of all benchmarks."""

from mlhpc.benchmarks import schema


class Hyperparameters(schema.Hyperparameters):
    opt_base_learning_rate: float = 0.02


class Blobs(schema.Run):
    hyperparameters: Hyperparameters
