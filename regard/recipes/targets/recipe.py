"""Recipes from inputs to one vector (`images`, `reviews`): a class, several labels, or numbers."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.layers.pool import ClassToken
from regard.look.maps import SampleMaps
from regard.look.measures import MAX_SCORES, contribution_maps
from regard.look.sample import Axis, Sample, format_score
from regard.models.writers.classes import ClassWriter
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.recipe import Answer, ConfigT, Dataset, Example, Recipe, Results, View
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.vectors import predict_all
from regard.recipes.targets.base import RawTargets, Target
from regard.recipes.targets.labels import ClassTarget, LabelsTarget
from regard.recipes.targets.numbers import NumberTarget
from regard.recipes.targets.temperature import divide_by_temperature, fit_temperature
from regard.trace import Trace


class TargetRecipe(Recipe[ConfigT]):
    """Recipe with a target (regard.recipes.targets.base)."""

    target: Target
    nouns: tuple[str, str]
    """Nouns for a target and an input in messages."""

    @abstractmethod
    def label_texts(self, data: Any) -> Sequence[str]:
        """Return the unparsed targets of data as read."""

    @abstractmethod
    def evaluation_batches(self, dataset: Dataset[Any]) -> Iterable[Any]:
        """Return batches of all encoded examples."""

    @abstractmethod
    def input_sample(self, inference: ActiveModel, example: Example) -> Sample:
        """Return the description of an input for captures: a title, the axis "source", pictures."""

    @property
    def kind(self) -> type[Target]:
        kinds = {"class": ClassTarget, "labels": LabelsTarget, "number": NumberTarget}
        return kinds[self.settings.data.target]

    def check(self) -> None:
        target, loss = self.settings.data.target, self.settings.model.regression_loss
        if target != "number" and loss != "squared":
            raise UserError(f"--model.regression-loss has no effect in runs of target {target}")
        super().check()

    def open(self, folder: Path) -> None:
        self.target = self.kind.load(folder, self.settings.data)
        self.metric, self.higher_is_better = self.target.metric, self.target.higher_is_better
        self.columns = self.target.columns

    def raw_targets(self, dataset: Dataset[Any]) -> RawTargets:
        data, on_bad = dataset.data, self.settings.data.on_bad
        return RawTargets(self.label_texts(data), data.where, dataset.origin, self.nouns, on_bad)

    def encode(self, dataset: Dataset[Any]) -> Dataset[Any]:
        keep, targets = self.target.encode(self.raw_targets(dataset))
        inputs, names, notes = dataset.inputs, dataset.names or dataset.inputs, dataset.notes
        if len(keep) < len(dataset):
            reason = f"{self.nouns[1]}s whose {self.nouns[0]} cannot be used"
            notes = (*notes, f"{dataset.origin}: left out {len(dataset) - len(keep)} {reason}")
        return replace(
            dataset,
            data=dataset.data.take(keep),
            inputs=View(len(keep), lambda i: inputs[keep[i]]),
            names=View(len(keep), lambda i: names[keep[i]]),
            references=View(len(keep), lambda i: self.target.reference(targets[i])),
            notes=notes,
            targets=targets,
        )

    def metrics(self, inference: ActiveModel, dataset: Dataset[Any]) -> dict[str, Any]:
        return self.results(inference, dataset).scores

    def results(self, inference: ActiveModel, dataset: Dataset[Any]) -> Results:
        outputs, targets = predict_all(inference.model, self.evaluation_batches(dataset))

        def score(rows: Any) -> dict[str, Any]:
            return self.target.metrics(outputs[rows], targets[rows], self.settings.threshold)

        scores = score(slice(None)) | {"signature": self.target.signature}
        return Results(scores, score)

    def calibrate(self, model: Any) -> dict[str, float]:
        """Divide the scores of classes by the temperature that fits the validation data."""
        writer = model.writer
        if not isinstance(self.target, ClassTarget) or not isinstance(writer, ClassWriter):
            return {}
        outputs, targets = predict_all(model, self.evaluation_batches(self.encoded_val))
        temperature = fit_temperature(outputs, targets)
        expected = divide_by_temperature(outputs, temperature)
        parameters = copy.deepcopy(writer.state_dict())
        writer.divide_scores(temperature)
        found, _ = predict_all(model, self.evaluation_batches(self.encoded_val))
        if not torch.allclose(found, expected, atol=1e-3):
            writer.load_state_dict(parameters)
            self.notify(f"no temperature: the scores of {type(writer).__name__} are not `output`'s")
            return {}
        before, after = (self.target.metrics(one, targets) for one in (outputs, found))
        self.notify(
            f"temperature {temperature:.3g}: validation nll {before['nll']:.4g} -> "
            f"{after['nll']:.4g}, expected calibration error {before['ece']:.3g} -> "
            f"{after['ece']:.3g} %"
        )
        return {"nll": after["nll"], "ece": after["ece"], "temperature": temperature}

    def forward(
        self, inference: ActiveModel, rows: Sequence[Any], trace: Trace | None = None
    ) -> Sequence[Tensor]:
        model = inference.model
        return [*model(self.collate(rows).to(device_of(model))).cpu()]

    def postprocess(self, example: Example) -> Answer:
        settings = self.settings
        return self.target.answer(example.outputs[0], settings.n_best, settings.threshold)

    def to_rows(self, answer: Answer, suffix: str, number: int) -> list[dict[str, Any]]:
        if isinstance(self.target, NumberTarget):
            return [self.target.to_row(answer.json["values"])]
        return super().to_rows(answer, suffix, number)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        threshold = self.settings.threshold
        best = self.target.answer(example.outputs[i], threshold=threshold).ranked[0]
        sample = self.input_sample(inference, example)
        axes = sample.axes | {"queries": Axis(labels=(best.text,), kind="answer")}
        pool = inference.model.writer.pool
        own = pool.count if isinstance(pool, ClassToken) else 0
        for label in ("[class]", "[distillation]")[:own][::-1]:
            axes["source"] = axes["source"].prepend(label)
        score = "" if isinstance(self.target, NumberTarget) else f" ({format_score(best.score)})"
        return replace(sample, title=f"{sample.title} -> {best.text}{score}", axes=axes)

    def explain(
        self, inference: ActiveModel, example: Example, i: int, sample: Sample
    ) -> SampleMaps | None:
        """Return the contributions of each part of the model at each item to the scores."""
        model, weights = inference.model, self.target.score_weights(example.outputs[i], MAX_SCORES)
        source = self.collate(example.rows).to(device_of(model))
        encoded = model.encoder(source)
        rows = weights.rows.to(encoded.items)
        found = model.writer.explain(model.core, encoded, rows, source=source)
        return contribution_maps(
            sample,
            found.parts,
            found.terms[0],
            found.bias[0].cpu() + weights.shift,
            names=weights.names,
            quantity=weights.quantity,
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        outputs = model(self.collate(example.rows).to(device_of(model)))
        return self.target.log_prob(outputs[0], self.settings.threshold)
