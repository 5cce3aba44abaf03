"""Masks: values, combinations, and refused inputs."""

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.masks import (
    Mask,
    Padded,
    causal,
    dense,
    documents,
    padding,
    prefix,
    split_interval,
    window,
)
from regard.attention.masks import base as masks_base
from regard.attention.positions import Positions

CPU = torch.device("cpu")


def draw(mask: Mask, queries: int, keys: int) -> list[str]:
    """Return one string per query, # for allowed keys."""
    rows = mask.tensor(queries, keys, device=CPU).expand(queries, keys)
    return ["".join("#" if allowed else "." for allowed in row) for row in rows.tolist()]


BY_HAND = [
    (causal(), 3, ["#..", "##.", "###"]),
    (causal(), 5, ["####.", "#####"]),
    (causal(), 2, ["..", "#.", "##"]),
    (~causal(), 3, [".##", "..#", "..."]),
    (causal() & ~dense(torch.eye(3, dtype=torch.bool)), 3, ["...", "#..", "##."]),
    (window(2), 4, ["#...", "##..", ".##.", "..##"]),
    (window(4, ahead=1), 5, ["##...", "###..", "####.", ".####", "..###"]),
    (window(2), 5, ["..##.", "...##"]),
    (window(3, ahead=2), 1, ["#", "#", "#"]),
    (window(7), 3, ["#..", "##.", "###"]),
    (prefix(torch.tensor(3)), 5, ["###..", "###..", "###..", "####.", "#####"]),
    (prefix(torch.tensor(0)), 3, ["#..", "##.", "###"]),
    (documents([0, 0, 1, 1, 1]), 5, ["##...", "##...", "..###", "..###", "..###"]),
    (documents([7, -1, 7]), 3, ["#.#", ".#.", "#.#"]),
    (documents([0, 0, 1, 1, 1]), 5, ["..###", "..###"]),
    (documents([3, 4]), 2, ["..", "#.", ".#"]),
    (documents([1, 0, 5], key_ids=[0, 0, 1, 2]), 4, ["..#.", "##..", "...."]),
]
"""Masks, the number of keys, and for each query the keys that it attends to."""


@pytest.mark.parametrize(("mask", "keys", "rows"), BY_HAND)
def test_masks_by_hand(mask, keys, rows):
    assert draw(mask, len(rows), keys) == rows


def test_causal_fully_masks_first_rows_when_queries_are_more():
    assert causal().may_have_fully_masked_rows(Positions(3, 2, CPU))
    assert not causal().may_have_fully_masked_rows(Positions(2, 3, CPU))


def test_padding_masks_keys_after_the_length():
    tensor = padding([2, 0, 3]).tensor(5, 3, device=CPU)
    assert tensor.shape == (3, 1, 3)
    assert tensor[:, 0].tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_padding_knows_whether_a_row_may_be_fully_masked():
    assert padding([2, 0]).may_have_fully_masked_rows(Positions(1, 3, CPU))
    assert not padding([2, 1]).may_have_fully_masked_rows(Positions(1, 3, CPU))


def test_masks_are_aligned_from_the_left():
    mask = padding([1, 2]) & dense(torch.ones(2, 3, 5, 2, dtype=torch.bool))
    tensor = mask.tensor(5, 2, device=CPU)
    assert tensor.shape == (2, 3, 5, 2)
    assert tensor[0, :, :, 1].sum() == 0
    assert tensor[1].all()


def test_or_has_no_fully_masked_rows_when_one_side_has_none():
    assert not (causal() | padding([0])).may_have_fully_masked_rows(Positions(2, 2, CPU))
    assert (causal() & padding([0])).may_have_fully_masked_rows(Positions(2, 2, CPU))
    assert (~causal() & ~padding([1])).may_have_fully_masked_rows(Positions(1, 2, CPU))


def test_causal_and_padding_has_no_fully_masked_rows_when_every_row_has_a_key():
    mask = causal() & padding([1, 2])
    assert not mask.may_have_fully_masked_rows(Positions(2, 2, CPU))
    assert mask.may_have_fully_masked_rows(Positions(3, 2, CPU))
    assert (mask & window(1)).may_have_fully_masked_rows(Positions(2, 2, CPU))


def test_complement_has_no_interval_and_may_have_fully_masked_rows():
    assert (~causal()).interval(Positions(3, 3, CPU)) is None
    assert (~causal()).may_have_fully_masked_rows(Positions(3, 3, CPU))


def test_interval_needs_both_to_be_ranges_and_split_returns_the_rest():
    diagonal, positions = dense(torch.eye(3, dtype=torch.bool)), Positions(3, 3, CPU)
    mask = (diagonal & causal()) & (padding([2]) & diagonal)
    assert mask.interval(positions) is None
    (_, last), rest = split_interval(mask, positions)
    assert last.squeeze(-1).tolist() == [[1, 2, 2]]
    assert repr(rest) == "(dense((3, 3)) & dense((3, 3)))"
    assert split_interval(None, positions) == (None, None)
    assert split_interval(diagonal, positions) == (None, diagonal)
    interval, rest = split_interval(causal(), positions)
    assert rest is None
    assert interval is not None


def test_padded_gives_the_mask_of_its_lengths():
    padded = Padded(torch.zeros(2, 4, 3), torch.tensor([4, 1]))
    assert padded.mask.tensor(1, 4, device=CPU).sum(-1).tolist() == [[4], [1]]


@pytest.mark.usefixtures("no_shape_checks")
def test_padding_refuses_invalid_lengths():
    with pytest.raises(TypeError, match=r"lengths must be integers.*float32"):
        padding(torch.tensor([1.0]))
    with pytest.raises(TypeError, match=r"lengths must be integers.*bool"):
        padding(torch.tensor([True]))
    with pytest.raises(ValueError, match=r"must not be negative, got -2"):
        padding([3, -2])
    with pytest.raises(TypeError, match=r"lengths must be integers.*float32"):
        padding([1.5])
    assert padding([]).lengths.dtype == torch.int64


def test_dense_refuses_numbers_and_names_the_bias():
    with pytest.raises(TypeError, match=r"must be boolean \(True = may attend\), got"):
        dense(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"\(\.\.\., query, key\).*\(2,\)"):
        dense(torch.ones(2, dtype=torch.bool))


@pytest.mark.usefixtures("no_shape_checks")
def test_masks_refuse_nested_and_sparse_tensors():
    for convert in (torch.Tensor.to_sparse, torch.nested.as_nested_tensor):
        with pytest.raises(TypeError, match="a dense mask must be neither nested nor sparse"):
            dense(convert(torch.ones(2, 3, dtype=torch.bool)))
        for make, name in ((padding, "lengths"), (prefix, "lengths"), (documents, "ids")):
            with pytest.raises(TypeError, match=f"{name} must be neither nested nor sparse"):
                make(convert(torch.ones(2, 3, dtype=torch.int64)))


def test_dense_owns_its_tensor():
    """Kernels cache what they derive from a mask (flex: its empty blocks)."""
    tensor = torch.ones(3, 4, dtype=torch.bool)
    mask = dense(tensor)
    tensor.zero_()
    assert mask.tensor(3, 4, device=CPU).all()


def test_dense_refuses_another_size():
    with pytest.raises(ValueError, match=r"3 queries or 1, 4 keys or 1.*\(3, 5\)"):
        dense(torch.ones(3, 5, dtype=torch.bool)).tensor(3, 4, device=CPU)


@pytest.mark.usefixtures("no_shape_checks")
def test_masks_have_no_truth_value_and_combine_only_with_masks():
    with pytest.raises(TypeError, match=r"combine masks with & and \|"):
        bool(causal())
    with pytest.raises(TypeError):
        causal() & torch.ones(2, 2, dtype=torch.bool)


def test_masks_copy_lengths_and_ids() -> None:
    """Properties that a mask caches when it is created must remain true."""
    lengths, ids = torch.tensor([2, 3]), torch.tensor([[0, 0, 1]])
    masks = [padding(lengths), prefix(lengths), documents(ids), documents(ids, ids)]
    before = [mask.tensor(3, 3) for mask in masks]
    lengths.zero_()
    ids[0, 0] = 2
    assert all(
        torch.equal(mask.tensor(3, 3), allowed) for mask, allowed in zip(masks, before, strict=True)
    )


def test_lengths_beyond_the_keys_mean_no_padding() -> None:
    assert padding([5, 2]).tensor(1, 3).tolist() == [[[True, True, True]], [[True, True, False]]]


def test_tensor_of_a_mask_can_be_changed() -> None:
    mask = causal()
    mask.tensor(3, 3).fill_(False)
    assert mask.tensor(3, 3).equal(torch.ones(3, 3, dtype=torch.bool).tril())
    x = torch.randn(1, 3, 2)
    mask.tensor(3, 3).fill_(False)
    assert attend(x, (x, x), mask=mask).abs().sum() > 0


def test_captured_reads_share_no_tensor_with_others(monkeypatch) -> None:
    mask, tensors = window(2), []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for is_captured in (False, True, True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda c=is_captured: c)
        tensors.append(masks_base.materialize_mask(mask, Positions(3, 4, CPU)))
    assert tensors[1] is tensors[2]
    assert tensors[1] is not tensors[0]
    assert tensors[1] is not tensors[3]


def test_large_tensors_without_rows_are_not_kept(monkeypatch) -> None:
    monkeypatch.setattr(masks_base, "MAX_KEPT", 9)
    of_rows = window(2) & padding([4, 3])
    for mask, size, is_kept in ((window(2), 3, True), (window(2), 4, False), (of_rows, 4, True)):
        position = Positions(size, size, CPU)
        first = masks_base.materialize_mask(mask, position)
        assert (masks_base.materialize_mask(mask, position) is first) == is_kept
