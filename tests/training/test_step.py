import pytest
import torch

from regard.errors import UserError
from regard.models.model import BatchLoss
from regard.training.distribution import Replica, World
from regard.training.seeds import derive_seed
from regard.training.step import add_gradients
from tests.helpers import close
from tests.training.toy import ToyBatch, ToyBatches, ToyModel

PLAN = [(4, 9, 2), (7,), (1, 3), (11, 5, 8, 0)]


def gradients(
    plan: list[tuple[int, ...]],
    *,
    dropout: float = 0.0,
    number: int = 6,
    model: ToyModel | None = None,
    precision: str = "float32",
) -> tuple[ToyModel, tuple[list[float], float, int]]:
    model = model or ToyModel(dropout=dropout).double()
    replica = Replica(model, World(), shard="ddp")
    values, count = add_gradients(
        replica, ToyBatches(), plan, epoch=2, step=number, seed=1, precision=precision
    )
    totals, nlls = values.unbind(1)
    return model, (totals.tolist(), nlls.sum().item(), count)


def test_gradients_of_the_batches_of_a_step_add_up_to_that_of_one_batch() -> None:
    parts, (totals, nll, count) = gradients(PLAN)
    one_batch, of_all = gradients([tuple(row for rows in PLAN for row in rows)])
    assert count == of_all[2] == sum(2 + row % 5 for rows in PLAN for row in rows)
    for accumulated, expected in zip(parts.parameters(), one_batch.parameters(), strict=True):
        close(accumulated.grad, expected.grad)
    assert sum(totals) == pytest.approx(sum(of_all[0]))
    assert nll == pytest.approx(of_all[1])


def test_gradient_is_that_of_the_mean_over_tokens() -> None:
    model, (totals, _, _) = gradients([(4, 9, 2)])
    expected = ToyModel().double()
    batch = ToyBatches().collate(2, (4, 9, 2))
    (expected.loss(batch).total / expected.count(batch)).backward()
    close(model.embed.weight.grad, expected.embed.weight.grad)
    assert totals == pytest.approx([expected.loss(batch).total.item()])


def test_random_numbers_depend_on_the_step_and_not_on_earlier_draws() -> None:
    first, _ = gradients(PLAN, dropout=0.5, number=6)
    torch.rand(17)
    repeated, _ = gradients(PLAN, dropout=0.5, number=6)
    other, _ = gradients(PLAN, dropout=0.5, number=7)
    assert torch.equal(first.embed.weight.grad, repeated.embed.weight.grad)
    assert not torch.equal(first.embed.weight.grad, other.embed.weight.grad)


def test_random_numbers_differ_between_the_batches_of_a_step() -> None:
    _, (totals, _, _) = gradients([(4, 9, 2), (4, 9, 2)], dropout=0.5)
    assert totals[0] != totals[1]


def test_bfloat16_is_close_to_float32() -> None:
    grads = []
    for precision in ("float32", "bfloat16"):
        model, _ = gradients(PLAN, model=ToyModel(), precision=precision)
        grads.append(model.layers[0].weight.grad)
    assert grads[1].dtype == torch.float32
    assert not torch.equal(grads[0], grads[1])
    torch.testing.assert_close(grads[0], grads[1], rtol=0.1, atol=5e-3)


def test_tf32_is_set_for_the_products_of_a_step_alone() -> None:
    seen = []

    class Watched(ToyModel):
        def loss(self, batch: ToyBatch) -> BatchLoss:
            seen.append(torch.get_float32_matmul_precision())
            return super().loss(batch)

    for precision in ("float32", "tf32"):
        gradients(PLAN[:1], model=Watched(), precision=precision)
    assert seen == ["highest", "high"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_step_without_target_tokens_is_refused_with_its_rows() -> None:
    class Empty(ToyModel):
        def count(self, batch: ToyBatch) -> int:
            return 0

    with pytest.raises(UserError, match=r"no target token: its rows are \[4, 9, 2\] in epoch 3"):
        gradients(PLAN, model=Empty())


def test_seeds_differ_with_each_number_and_their_order() -> None:
    numbers = [(1, 2, 3), (1, 3, 2), (12, 3), (1, 23), (2, 2, 3)]
    seeds = [derive_seed(*given) for given in numbers]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 2, 3) == seeds[0]
