"""Recipes that map an input to one vector (`images`, `reviews`): a class, several labels, or
numbers."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from regard.data.config import OnBad
from regard.errors import UserError
from regard.layers.pool import ClassToken
from regard.look.maps import SampleMaps
from regard.look.measures import MAX_SCORES, contribution_maps
from regard.look.sample import Axis, Sample
from regard.models.writers.vector import NoTermsError
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.config import RankedPrediction
from regard.recipes.base.entry import Entry
from regard.recipes.base.recipe import (
    ConfigT,
    EmptyAnswerError,
    Examples,
    Prepared,
    Ranked,
    Recipe,
    join_items,
)
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.vectors import LABEL_THRESHOLD, predict_all
from regard.recipes.targets.base import RawTargets, Target
from regard.recipes.targets.kinds import get_target_type
from regard.recipes.targets.labels import LabelsTarget
from regard.recipes.targets.numbers import NumberTarget
from regard.trace import Trace


class VectorAnswer(NamedTuple):
    """Answer of a model with a vector as output."""

    output: Tensor
    """(1, ...)"""
    ranked: list[Ranked]


class TargetRecipe(Recipe[ConfigT]):
    """Recipe with a target (regard.recipes.targets.base)."""

    target: Target
    nouns: tuple[str, str]
    """Nouns for a target and an input in messages."""

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        self.kind = get_target_type(run.config.data)
        self.metric, self.higher_is_better = (
            self.kind.select_metric(run.config.data),
            self.kind.higher_is_better,
        )

    @abstractmethod
    def label_texts(self, data: Any) -> Sequence[str]:
        """Return the unparsed targets of data as read."""

    @abstractmethod
    def take(self, data: Any, keep: Sequence[int]) -> Any:
        """Return the inputs at these indices of data as read."""

    @abstractmethod
    def evaluation_batches(self, examples: Examples[Any]) -> Iterable[Any]:
        """Return batches of all usable examples."""

    @abstractmethod
    def collate(self, rows: Sequence[Any]) -> Any:
        """Return rows as the source of the model."""

    @abstractmethod
    def input_sample(self, inference: ActiveModel, prepared: Prepared, row: int) -> Sample:
        """Return the description of a row for captures: a title, the axis "source", pictures."""

    def raw_targets(self, examples: Examples[Any]) -> RawTargets:
        """Return the unparsed targets of examples as read."""
        texts = self.label_texts(examples.data)
        return RawTargets(
            texts, examples.data.where, examples.origin, self.nouns, cast("OnBad", examples.on_bad)
        )

    def usable(self, examples: Examples[Any]) -> Examples[Any]:
        keep, targets = self.target.encode(self.raw_targets(examples))
        left_out, name = len(examples) - len(keep), examples.name or examples.input
        note = f"{examples.origin}: left out {left_out} {self.nouns[1]}s whose {self.nouns[0]} cannot be used"
        tensor = torch.from_numpy(targets)
        return replace(
            examples,
            data=self.take(examples.data, keep),
            count=len(keep),
            input=lambda i: examples.input(keep[i]),
            name=lambda i: name(keep[i]),
            reference=lambda i: self.target.to_texts(tensor[i : i + 1])[0],
            reference_json=lambda i: self.target.to_reference(tensor[i]),
            skipped=(*examples.skipped, *([note] if left_out else [])),
            targets=targets,
        )

    def check_examples(self, split: str, examples: Examples[Any]) -> None:
        if split == "train":
            self.kind.fit(self.raw_targets(examples), self.run.config.data)
        if split == "val" and self.run.config.data.target == "class":
            missing = sorted(
                {*self.label_texts(self.train.data)} - {*self.label_texts(examples.data)}
            )
            if missing:
                name, noun = self.nouns
                self.notify(
                    f"{examples.origin}: no validation {noun} has the {name} {join_items(missing)} "
                    f"of training"
                )

    def score(
        self, inference: ActiveModel, examples: Examples[Any], options: Any
    ) -> dict[str, Any]:
        answers, references = predict_all(inference.model, self.evaluation_batches(examples))
        return self.target.score(answers, references) | self.target.tables(answers, references)

    def report(self, inference: ActiveModel, examples: Examples[Any]) -> dict[str, Any]:
        return {"signature": self.target.signature}

    def answer(
        self, inference: ActiveModel, rows: Sequence[Any], options: Any, trace: Trace | None = None
    ) -> Sequence[Tensor]:
        return inference.model(self.collate(rows).to(device_of(inference.model))).cpu().split(1)

    def join(
        self, prepared: Prepared, answers: Sequence[Tensor], options: RankedPrediction
    ) -> list[VectorAnswer]:
        ranked = self.target.rank(torch.cat(list(answers)), options.n_best) if answers else []
        return [VectorAnswer(*pair) for pair in zip(answers, ranked, strict=True)]

    def values(self, answers: list[VectorAnswer]) -> list[Any]:
        return (
            self.target.to_values(torch.cat([answer.output for answer in answers]))
            if answers
            else []
        )

    def rank_texts(self, answer: VectorAnswer) -> list[Ranked]:
        return answer.ranked

    def json(self, answer: VectorAnswer) -> Mapping[str, object]:
        return self.target.to_json(answer.output, answer.ranked)

    def sample(
        self, inference: ActiveModel, prepared: Prepared, row: int, answers: Sequence[Tensor]
    ) -> Sample:
        best, sample = (
            self.target.rank(answers[row], 1)[0][0],
            self.input_sample(inference, prepared, row),
        )
        axes = sample.axes | {"queries": Axis(labels=(best.text,), kind="answer")}
        if isinstance(inference.model.writer.pool, ClassToken):
            axes["source"] = axes["source"].prepend("[class]")
        return replace(
            sample, title=f"{sample.title} -> {self.target.format_title(best)}", axes=axes
        )

    def explain(
        self, inference: ActiveModel, prepared: Prepared, row: int, answer: Tensor, sample: Sample
    ) -> SampleMaps | None:
        model, weights = inference.model, self.target.score_weights(answer, MAX_SCORES)
        source = self.collate(prepared.rows[row : row + 1]).to(device_of(model))
        encoded = model.encoder(source)
        try:
            found = model.writer.explain(
                model.core, encoded, weights.rows.to(encoded.items), source=source
            )
        except NoTermsError as error:
            if row == 0:
                self.notify(f"contributions to the score are not shown: {error}")
            return None
        used = found.terms[0].any(0).any(0).nonzero().flatten().tolist()
        if row == 0 and len(used) == 1 and len(sample.axes["source"]) > 1:
            item = sample.axes["source"].labels[used[0]]
            self.notify(
                f"contributions: the item {item!r} has the whole score, since the pool reads its "
                f"state alone "
                f"(--model.pool {self.run.config.model.pool})"
            )
        names = {"names": weights.names, "quantity": weights.quantity, "key": f"contribution/{row}"}
        return contribution_maps(
            sample, found.parts, found.terms[0], found.bias[0].cpu() + weights.shift, **names
        )

    def check_log_prob(self) -> None:
        if isinstance(self.target, NumberTarget):
            raise UserError(self.no_probability_message("numbers"))

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: Any) -> Tensor:
        return answer_log_prob(
            self.target, model(self.collate(prepared.rows[row : row + 1]).to(device_of(model)))
        )


def answer_log_prob(target: Target, answers: Tensor) -> Tensor:
    """Return log p of the predicted class or labels of one row. Raises EmptyAnswerError if no label
    is predicted."""
    if not isinstance(target, LabelsTarget):
        return answers[0].max().log()
    predicted = answers[0] >= LABEL_THRESHOLD
    if not predicted.any():
        raise EmptyAnswerError(
            "no label is predicted for it, so there is no probability to differentiate"
        )
    return answers[0][predicted].log().sum()
