"""The training and the evaluation step: their results and side effects."""

import copy
import platform
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

from mlhpc.benchmarks.deepcam import Hyperparameters, Network
from mlhpc.common.pytorch import step as step_module
from mlhpc.common.pytorch.devices import pick_device
from mlhpc.common.pytorch.step import (
    Steps,
    WarmUpSizes,
    make_eval_step,
    make_scaler,
    make_train_step,
    set_rate,
    warm_up,
)
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.data.source import zeros_batch
from mlhpc.deepcam.metric import iou, summed_iou, weighted_cross_entropy
from mlhpc.deepcam.model import build_model
from mlhpc.deepcam.optim.optimizer import make_optimizer
from mlhpc.errors import UserError

NETWORK = Network(width=0.1, middle_blocks=1)
CPU = torch.device("cpu")
NO_SCALE = make_scaler("float32", CPU)


def batch_of(samples, seed=0):
    """Fields, and masks that can be inferred from them."""
    torch.manual_seed(seed)
    x = torch.randn(samples, 32, 48, 16).permute(0, 3, 1, 2)
    return x, (x[:, 0] > 0.5).to(torch.uint8) + (x[:, 0] > 1.2).to(torch.uint8)


def made(name="LAMB", seed=1, **options):
    torch.manual_seed(seed)
    model = build_model(NETWORK, 16).to(memory_format=torch.channels_last)
    use_cpu_kernels(model)
    facts = Hyperparameters(global_batch_size=2, opt_name=name, opt_lr=0.01)
    optimizer = make_optimizer(facts, model.parameters())
    return model, optimizer, make_train_step(model, weighted_cross_entropy, optimizer, NO_SCALE, **options)


def test_a_step_is_forward_loss_backward_and_update():
    model, _, step = made("AdamW")
    plain = copy.deepcopy(model)
    x, y = batch_of(2)
    loss = step(x, y)
    expected = weighted_cross_entropy(plain(x), y)
    expected.backward()
    torch.optim.AdamW(plain.parameters(), 0.01, eps=1e-6, weight_decay=0.01).step()
    assert loss.item() == expected.item() and not loss.requires_grad
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    """Without batch norm, whose statistics are of part of the batch only."""

    def network():
        torch.manual_seed(2)
        return nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    facts = Hyperparameters(global_batch_size=6, opt_lr=0.01)
    whole, parts = network(), network()
    step = make_train_step(whole, weighted_cross_entropy, make_optimizer(facts, whole.parameters()), NO_SCALE)
    update = make_optimizer(facts, parts.parameters())
    part_step = make_train_step(parts, weighted_cross_entropy, update, NO_SCALE, accumulate=3)
    for update in range(2):
        x, y = batch_of(6, seed=update)
        loss = step(x, y)
        losses = [part_step(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-6)


def test_bfloat16_trains_like_float32():
    x, y = batch_of(4)
    losses = {}
    for precision in ("float32", "mixed_bfloat16"):
        model, optimizer, step = made("AdamW", precision=precision)
        set_rate(optimizer, 0.003)
        losses[precision] = [step(x, y).item() for _ in range(15)]
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert losses["mixed_bfloat16"][0] == pytest.approx(losses["float32"][0], rel=0.02)
    assert max(losses["float32"][-1], losses["mixed_bfloat16"][-1]) < 0.8 * losses["float32"][0]


def test_evaluation_is_exact_and_changes_no_state():
    model, _, step = made()
    x, y = batch_of(5)
    step(x, y)
    before = copy.deepcopy(model.state_dict())
    eval_step = make_eval_step(model, summed_iou)
    total, count = eval_step(x, y)
    parts = [eval_step(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
    with torch.no_grad():
        expected = iou(model.eval()(x), y).sum()
    assert count == sum(number for _, number in parts) == 5
    assert total.item() == expected.item()
    assert sum(part.item() for part, _ in parts) == pytest.approx(total.item(), rel=1e-3)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    step(x, y)
    assert model.training


@pytest.mark.parametrize("name", ["LAMB", "AdamW"])
def test_warm_up_restores_the_state_bit_for_bit(name):
    x, y = batch_of(2)
    histories, states = [], []
    for warm in (False, True):
        model, optimizer, step = made(name, accumulate=2)
        if warm:
            before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
            zeros = partial(zeros_batch, sample_shape=(32, 48, 16))
            warm_up(
                model,
                optimizer,
                NO_SCALE,
                Solo(),
                Steps(step, make_eval_step(model, summed_iou)),
                zeros,
                WarmUpSizes(2, 3, 2),
            )
            torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
            assert torch.equal(torch.get_rng_state(), random)
        histories.append([step(x, y).item() for _ in range(6)])
        states.append((model.state_dict(), optimizer.state_dict()))
    assert histories[0] == histories[1]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_the_network_compiles_without_graph_breaks():
    """Forward and backward, without a break after which Python would launch the rest layer by layer."""
    torch.manual_seed(4)
    model = build_model(NETWORK, 16)
    x, y = batch_of(2)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    losses = []
    for network in (model, compiled):
        loss = weighted_cross_entropy(network(x), y)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_nothing_in_a_step_waits_for_the_device(scaled):
    """On PyTorch's meta device, where tensors have no values: reading one, which would wait for a GPU, is an
    error."""
    with torch.device("meta"):
        model = build_model(NETWORK, 16)
    facts = Hyperparameters(global_batch_size=4, opt_name="LAMB", opt_lr=0.01)
    optimizer = make_optimizer(facts, model.parameters())
    if scaled:  # as GradScaler gives them to an optimizer that heeds them itself
        optimizer.grad_scale = torch.ones(1, device="meta")
        optimizer.found_inf = torch.ones(1, device="meta")
    step = make_train_step(model, weighted_cross_entropy, optimizer, NO_SCALE, accumulate=2)
    x, y = batch_of(2)
    for _ in range(4):
        set_rate(optimizer, 0.1)
        loss = step(x, y)
    total, _ = make_eval_step(model, summed_iou)(x, y)
    for result in (loss, total):
        assert result.device.type == "meta"
        with pytest.raises(RuntimeError, match="meta"):
            float(result)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_kept_for_the_next_step():
    """In a separate process, since the setting is permanent."""
    program = """
import resource, sys, torch
from mlhpc.common.host.malloc import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
for step in range(8):
    if step == 6:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x = torch.ones(9 << 20, requires_grad=True)  # 36 MiB
    (2 * x).relu().exp().sum().backward()
    del x
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

    def faults(*arguments):
        return int(subprocess.check_output([sys.executable, "-c", program, *arguments]))

    assert faults("keep") * 3 < faults("leave")


def test_missing_hardware_is_a_one_line_error():
    assert pick_device("auto", 0) == pick_device("cpu", 3) == CPU
    with pytest.raises(
        UserError, match=r"^training\.device=cuda: .* sees no accelerator here; use cpu or auto$"
    ):
        pick_device("cuda", 0)
    with pytest.raises(UserError, match=r"^training\.precision=mixed_float16 .* mixed_bfloat16$"):
        make_scaler("mixed_float16", CPU)


def test_compiled_code_sees_a_single_batch_size(monkeypatch):
    """A rank's last batch is often smaller: it is padded, and only the samples count."""
    sizes = set()

    def compile_for(model, **options):
        assert options["dynamic"] is False

        def forward(x):
            sizes.add(tuple(x.shape))
            assert x.is_contiguous(memory_format=torch.channels_last)
            return model(x)

        return forward

    monkeypatch.setattr(torch, "compile", compile_for)
    monkeypatch.setattr(step_module, "require_compiler", lambda gpu: None)  # nothing is compiled here
    model, *_ = made()
    plain = make_eval_step(model, summed_iou)
    filled = make_eval_step(model, summed_iou, batch=3, compiled=True)
    for samples in (3, 1, 2):
        (wanted, count), (told, counted) = (step(*batch_of(samples)) for step in (plain, filled))
        assert counted == count == samples and float(told) == pytest.approx(float(wanted))
    assert sizes == {(3, 16, 32, 48)}


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batches_reach_the_network_in_the_configured_layout(layout):
    model, *_ = made(layout=layout)
    in_layout = []
    model.register_forward_pre_hook(
        lambda _, inputs: in_layout.append(inputs[0].is_contiguous(memory_format=layout))
    )
    optimizer = make_optimizer(Hyperparameters(global_batch_size=2, opt_lr=0.01), model.parameters())
    make_train_step(model, weighted_cross_entropy, optimizer, NO_SCALE, layout=layout)(*batch_of(2))
    make_eval_step(model, summed_iou, layout=layout)(*batch_of(2))
    assert in_layout == [True, True]


def test_a_gpu_with_too_little_memory_is_a_one_line_error():
    def loss_of(logits, y):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 5.80 GiB. GPU 0 has a total\ncapacity"
        )

    model, optimizer, _ = made()
    for step in (make_train_step(model, loss_of, optimizer, NO_SCALE), make_eval_step(model, loss_of)):
        with pytest.raises(
            UserError, match=r"too little memory for 2 samples.*allocate 5\.80 GiB.*mixed"
        ) as raised:
            step(*batch_of(2))
        assert "\n" not in str(raised.value) and "a smaller" in str(raised.value)
        with pytest.raises(UserError, match="for 1 sample at once") as raised:
            step(*batch_of(1))
        assert "a smaller" not in str(raised.value)  # nothing is smaller than a sample
