"""LAMB's step against PyTorch's AdamW in its ``foreach`` form, on the 56 454 720 weights of the network.

    python tests/perf/lamb.py [--repeats 15] [--device cpu]

Steps alternate, so that noise of the machine affects both; the ratio is taken pair by pair, and its median is
the result. timm's Lamb is measured too if it is installed.
"""

import argparse
import statistics
import time

import torch

from mlhpc.benchmarks.deepcam import Hyperparameters, Network
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile LAMB's update")
    parser.add_argument("--width", type=float, default=1.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = build_model(Network(width=options.width), 16).to(options.device)
    weights = [p.detach() for p in model.parameters()]
    gradients = [torch.randn_like(w) * 1e-3 for w in weights]
    facts = Hyperparameters(global_batch_size=1, opt_lr=0.001, opt_name="LAMB")

    def copies() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(w.clone()) for w in weights]

    contenders = {
        "AdamW foreach": torch.optim.AdamW(copies(), 0.001, eps=1e-6, foreach=True),
        "LAMB": make_optimizer(facts, copies(), compiled=options.compile),
    }
    try:
        from timm.optim.lamb import Lamb

        contenders["timm Lamb"] = Lamb(copies(), 0.001)
    except ImportError:
        pass
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(options.repeats + 2):
        for name, optimizer in contenders.items():
            for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
                parameter.grad = gradient.clone()
            if options.device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            optimizer.step()
            if options.device == "cuda":
                torch.cuda.synchronize()
            if repeat >= 2:
                seconds[name].append(time.perf_counter() - begin)
            optimizer.zero_grad()
    for name, spent in seconds.items():
        ratios = sorted(a / b for a, b in zip(spent, seconds["AdamW foreach"], strict=True))
        print(
            f"{name:14} {1e3 * statistics.median(spent):8.2f} ms   of AdamW foreach: "
            f"{statistics.median(ratios):.2f} [{ratios[0]:.2f} .. {ratios[-1]:.2f}]"
        )


if __name__ == "__main__":
    main()
