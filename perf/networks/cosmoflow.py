"""CosmoFlow (Mathuriya et al. 2018; the MLPerf HPC reference, rounds 0.7 to 3.0) as a list of layers."""

from collections.abc import Sequence

from mlhpc.benchmarks import cosmoflow
from mlhpc.perf.networks.builder import Builder
from mlhpc.perf.networks.layer import Network


def layers(
    network: cosmoflow.Network,
    sample_shape: Sequence[int],
    *,
    pool_first: bool = True,
    keeps: str = "output",
    cpu_kernels_from: int | None = None,
) -> Network:
    """The layers for samples [n, n, n, channels], whose sides can be halved once per block.

    ``pool_first``: bias and activation come after pooling, which computes the same function with an eighth of the
    work; False: they come before pooling, as in the reference and in the counts of Ibrahim et al. 2021. ``keeps``:
    what a pooling layer keeps: its "output" (TensorFlow), the "indices" of the maxima (PyTorch), or their "places"
    and the sign of the activation in one byte (the suite's GPU kernels). ``cpu_kernels_from``: the first block,
    counted from 0, that uses the suite's CPU kernels in PyTorch where they are suitable; they keep less.
    """
    net = Builder("CosmoFlow", sample_shape)
    x = net.input
    for block in range(network.conv_layers):
        number, filters = block + 1, network.conv_filters * 2**block
        own = cpu_kernels_from is not None and block >= cpu_kernels_from
        places = own and _cpu_kernels_suit(x.channels, filters, network.conv_kernel)
        x = net.convolution(f"conv {number}", x, filters, network.conv_kernel, bias=not pool_first)
        if pool_first:
            x = net.max_pool(f"pool {number}", x, 2, stride=2, keeps="places" if places else keeps)
            x = net.bias(f"bias {number}", x)
            x = net.activation(
                f"conv {number} LeakyReLU", x, keeps="output" if keeps == "places" else "input"
            )
        else:
            x = net.activation(f"conv {number} LeakyReLU", x)
            x = net.max_pool(f"pool {number}", x, 2, stride=2, keeps=keeps)
    for number, units in enumerate(network.dense_units, 1):
        x = net.dense(f"dense {number}", x, units)
        x = net.activation(f"dense {number} LeakyReLU", x)
        x = net.dropout(f"dropout {number}", x)
    x = net.dense(f"dense {len(network.dense_units) + 1}", net.to_float32(x), network.targets)
    x = net.activation("tanh", x, keeps="output")
    net.squared_error(x)
    return net.network()


def _cpu_kernels_suit(channels: int, filters: int, kernel: int) -> bool:
    """Return whether the kernels of ``cosmoflow/cpu/pooled.py`` support a block with these ``channels``,
    ``filters`` and ``kernel``."""
    return kernel == 3 and (channels <= 16 or channels % 16 == 0) and filters <= 512
