"""Outputs that are read with teacher forcing have the attention of the search that found them."""

from typing import Any

import pytest

from regard.decode.hypothesis import Rules
from regard.decode.teacher import trace_outputs
from regard.look.record import record
from tests.look.maps import check_same
from tests.look.toys import (
    BOS,
    CORES,
    EOS,
    PAD,
    SOURCES,
    capture_sources,
    model_of,
    sample_of,
    source_of,
)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "n_best": 3}])
@pytest.mark.parametrize("core", CORES)
def test_outputs_of_a_search_are_read_again(core: str, options: Any) -> None:
    model, rules = model_of(CORES[core]), Rules(bos=BOS, eos=EOS, banned=(PAD, BOS))
    searched = capture_sources(model, SOURCES[:2], **options)
    with record(model, dtype=next(model.parameters()).dtype) as again:
        for source in SOURCES[:2]:
            labels = sample_of(source).axes["source"].labels
            found = [own.sample for own in searched if own.sample.axes["source"].labels == labels]
            outputs = [[BOS, *own.output_ids] for own in found]
            settings = {"log_probs": rules.log_probs, "likely": 2 * options["beam"]}
            with again.trace.segment([sample_of(source)]):
                trace_outputs(model, source_of(source), outputs, again.trace, **settings)
    check_same(again, searched)
