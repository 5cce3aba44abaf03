"""Shape annotations of signatures are checked at run time by the tests."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from regard.attention.attend import attend


def test_wrong_number_of_axes_is_refused() -> None:
    with pytest.raises(BeartypeCallHintViolation, match=r"query query_dim"):
        attend(torch.ones(3), (torch.ones(5, 3), torch.ones(5, 7)))


def test_wrong_dtype_is_refused() -> None:
    with pytest.raises(BeartypeCallHintViolation, match=r"query query_dim"):
        attend(torch.ones(2, 3, dtype=torch.int64), (torch.ones(5, 3), torch.ones(5, 7)))
