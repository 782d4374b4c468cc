"""How evaluations are judged: as scikit-learn would, from sums that do not depend on the order of what is added."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from trainpkg.data.python_text import IGNORED
from trainpkg.errors import UserError
from trainpkg.tasks import exact
from trainpkg.tasks.images import Images
from trainpkg.tasks.language import Language


class Given(nn.Module):
    """Answers with its inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def in_passes(task: Images | Language, inputs: Tensor, targets: Tensor, batch: int) -> Tensor:
    """Sums over passes of `batch` samples, the last one padded with repeated samples that do not count."""
    total = torch.zeros(task.num_sums, dtype=torch.float64)
    for first in range(0, len(targets), batch):
        places = torch.arange(first, first + batch)
        kept = places.clamp(max=len(targets) - 1)
        total += task.sums(Given(), (inputs[kept], targets[kept]), places < len(targets))
    return total


@pytest.mark.parametrize("num_classes", [3, 12])
def test_images_are_judged_as_by_scikit_learn(num_classes: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    labels = torch.randint(num_classes, (500,))
    logits = torch.randn(500, num_classes) + 2 * nn.functional.one_hot(labels, num_classes)
    task = Images(num_classes)
    sums = in_passes(task, logits, labels, 64)
    found, tables = task.metrics(sums, {}), task.tables(sums)
    predicted, every = logits.argmax(1), list(range(num_classes))
    assert found["loss"] == pytest.approx(metrics.log_loss(labels, logits.double().softmax(1), labels=every), rel=1e-6)
    assert found["accuracy"] == metrics.accuracy_score(labels, predicted)
    top5 = metrics.top_k_accuracy_score(labels, logits, k=5, labels=every) if num_classes > 5 else 1.0
    assert found["top5_accuracy"] == top5
    assert found["mean_class_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    confusion = metrics.confusion_matrix(labels, predicted, labels=every)
    rows = zip(*(tables["confusion"][name] for name in ("label", "predicted", "count")), strict=True)
    assert {(i, j): n for i, j, n in rows} == {(i, j): confusion[i, j] for i in every for j in every}
    right, support = confusion.diagonal(), confusion.sum(1)
    expected = {"support": support.tolist(), "predicted": confusion.sum(0).tolist(), "right": right.tolist()}
    assert tables["classes"] == {"label": every, **expected, "accuracy": (right / support).tolist()}


def test_a_class_without_images_counts_nowhere() -> None:
    logits = torch.eye(4)[[0, 1, 3]]
    sums = in_passes(Images(4), logits, torch.tensor([0, 1, 1]), 2)
    assert Images(4).metrics(sums, {})["mean_class_accuracy"] == 0.75
    assert Images(4).tables(sums)["classes"]["accuracy"] == [1.0, 0.5, None, None]


def test_text_is_judged_by_the_bytes_that_are_there() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(10, 7, 256), torch.randint(256, (10, 7))
    targets[-1, 3:] = IGNORED
    found = Language().metrics(in_passes(Language(), logits, targets, 4), {"unigram_nats_per_byte": 5.0})
    losses = -logits.double().log_softmax(2).flatten(0, 1)[torch.arange(70), targets.flatten().clamp(min=0)][:66]
    mean = losses.mean().item()
    assert found["loss"] == found["loss_nats_per_byte"] == pytest.approx(mean, rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(mean / math.log(2), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    assert (found["num_tokens"], found["unigram_nats_per_byte"]) == (66, 5.0)


def test_sums_are_the_same_in_whatever_order() -> None:
    torch.manual_seed(0)
    losses = torch.rand(10_000) * torch.logspace(-6, 1, 10_000)
    kept = exact(losses)
    assert (kept - losses.double()).abs().max() <= 2**-25
    shuffled = kept[torch.randperm(10_000)]
    assert {kept.sum().item(), shuffled.sum().item(), sum(shuffled.tolist())} == {math.fsum(kept.tolist())}
    assert len({losses.double().sum().item(), losses.double()[torch.randperm(10_000)].sum().item()}) == 2, (
        "else no test"
    )
    assert exact(torch.tensor(math.nan)).isnan() and exact(torch.tensor(math.inf)).isinf()


@pytest.mark.parametrize("outputs", [2, 4])
def test_outputs_for_other_classes_are_refused(outputs: int) -> None:
    """More: an image would count in another class's place; fewer: the job would end in the kernel."""
    batch = torch.zeros(3, outputs), torch.tensor([0, 1, 1])
    wrong = rf"the model gives \[3, {outputs}\] for 3 images of 3 classes, wanted is \[3, 3\]"
    with pytest.raises(UserError, match=wrong):
        Images(3).loss(Given(), batch)
    with pytest.raises(UserError, match=wrong):
        Images(3).sums(Given(), batch, torch.tensor([True] * 3))
