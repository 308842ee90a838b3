"""Loss and metric of DeepCAM against loops over pixels, and against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from mlhpc.deepcam.metric import iou, weighted_cross_entropy

SHARES = [0.986267818390377, 0.0004578708870701058, 0.01327431072255291]  # of the published data set


def slow_iou(prediction, truth):
    shares = []
    for number in range(3):
        hits = false_alarms = misses = 0
        for ours, theirs in zip(prediction.flatten().tolist(), truth.flatten().tolist(), strict=True):
            hits += ours == number and theirs == number
            false_alarms += ours == number and theirs != number
            misses += ours != number and theirs == number
        union = hits + false_alarms + misses
        shares.append(hits / union if union else 1.0)
    return sum(shares) / 3


def maps(seed, samples=7, rows=9, columns=11):
    """Classes of which some samples lack one or two."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(3, (samples, rows, columns), p=[0.9, 0.02, 0.08]).astype(np.uint8)
    truth[0], truth[1][truth[1] == 1] = 0, 0
    guess = np.where(rng.random(truth.shape) < 0.7, truth, rng.choice(3, truth.shape)).astype(np.uint8)
    guess[0], guess[1][guess[1] == 1] = 0, 0
    return torch.from_numpy(guess), torch.from_numpy(truth)


@pytest.mark.parametrize("seed", range(4))
def test_iou_equals_a_loop_over_pixels(seed):
    guess, truth = maps(seed)
    expected = [slow_iou(ours, theirs) for ours, theirs in zip(guess, truth, strict=True)]
    ours = iou(guess, truth)
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-15)
    one_hot = torch.nn.functional.one_hot(guess.long(), 3).permute(0, 3, 1, 2).float()
    np.testing.assert_array_equal(iou(one_hot, truth).numpy(), ours.numpy())


def test_iou_of_a_class_is_one_if_in_neither_map_and_zero_if_in_one():
    nothing, a_river = torch.zeros(1, 4, 4, dtype=torch.uint8), torch.zeros(1, 4, 4, dtype=torch.uint8)
    a_river[0, 0] = 2
    assert iou(nothing, nothing).item() == 1
    assert iou(nothing, a_river).item() == pytest.approx((12 / 16 + 1 + 0) / 3)
    assert iou(a_river, nothing).item() == pytest.approx((12 / 16 + 1 + 0) / 3)


def test_the_mean_over_samples_does_not_depend_on_their_distribution_over_ranks():
    guess, truth = maps(9)
    whole = iou(guess, truth).sum().item() / 7
    for size in (1, 2, 3, 5):
        parts = [iou(guess[i : i + size], truth[i : i + size]).sum().item() for i in range(0, 7, size)]
        assert sum(parts) / 7 == pytest.approx(whole, rel=1e-15)


def test_the_loss_is_the_mean_over_pixels_of_weighted_logarithms():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (2, 3, 4, 5))
    truth = rng.choice(3, (2, 4, 5))
    total = 0.0
    for sample in range(2):
        for row in range(4):
            for column in range(5):
                values = logits[sample, :, row, column]
                number = truth[sample, row, column]
                chance = math.exp(values[number]) / sum(math.exp(value) for value in values)
                total -= SHARES[number] ** -0.125 * math.log(chance)
    for kind in (torch.uint8, torch.int64):
        loss = weighted_cross_entropy(
            torch.tensor(logits, dtype=torch.float32), torch.tensor(truth, dtype=kind)
        )
        assert loss.item() == pytest.approx(total / 40, rel=1e-6)


def test_the_loss_of_bfloat16_logits_is_computed_in_float32():
    logits = (torch.randn(1, 3, 8, 8) * 4).to(torch.bfloat16)
    y = torch.randint(0, 3, (1, 8, 8), dtype=torch.uint8)
    assert weighted_cross_entropy(logits, y).item() == weighted_cross_entropy(logits.float(), y).item()
