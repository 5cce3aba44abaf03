"""Rules between the tensors of another library and the parameters of a model, both ways.

    "h.*.ln_1": "core.decoder.*.add_attention.norm"        the weight, and the bias if there is one
    "h.*.c_attn^T": "core.decoder.*.attention.query+key"   a matrix (in, out): theirs = ours^T;
                                                           stacked rows: theirs = [ours_1; ours_2]
    "final_logits_bias^1": "writer.output_bias"            theirs has one more axis in front, of
                                                           size 1; ^2: two axes
    "h.*.{ln_1,ln_2}": "core.decoder.*.{add_attention,add_feedforward}.norm"       two rules

A star is the number of a layer. Every rule is inverted without rounding, so one table imports and
exports; the names of the parameters say which layers and biases there are.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import UserError

_BRACES = re.compile(r"\{(.*?)\}")


@dataclass(frozen=True)
class Rule:
    """Rule of one tensor: its name there, the names of parameters here, and how they differ."""

    theirs: str
    ours: tuple[str, ...]
    how: str = ""
    """T: transposed; a digit: number of axes in front, of size 1."""

    def export(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return their tensor."""
        parts = [parameters[name] for name in self.ours]
        value = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.how.isdigit():
            return value.view(*(1,) * int(self.how), *value.shape)
        return value.T if self.how == "T" and value.dim() > 1 else value

    def load(self, value: Tensor) -> dict[str, Tensor]:
        """Return the parameters of their tensor, by name."""
        if self.how.isdigit():
            value = value.flatten(0, int(self.how))
        parts = (value.T if self.how == "T" and value.dim() > 1 else value).chunk(len(self.ours))
        return {name: part.contiguous() for name, part in zip(self.ours, parts, strict=True)}


def within(theirs: str, ours: str, table: Mapping[str, str]) -> dict[str, str]:
    """Return a table of names within a module of theirs and one of ours."""
    return {f"{theirs}.{name}": f"{ours}.{own}" for name, own in table.items()}


def expand(theirs: str, ours: str) -> list[tuple[str, str]]:
    """Return the rules without braces that a rule with braces stands for."""
    found, other = _BRACES.search(theirs), _BRACES.search(ours)
    if found is None or other is None:
        return [(theirs, ours)]
    rules = []
    for name, own in zip(found[1].split(","), other[1].split(","), strict=True):
        rules += expand(theirs.replace(found[0], name, 1), ours.replace(other[0], own, 1))
    return rules


def make_rules(table: Mapping[str, str], parameters: Iterable[str]) -> list[Rule]:
    """Return the rules of a table for the parameters of a model."""
    names, rules = list(parameters), []
    for key, target in [rule for pair in table.items() for rule in expand(*pair)]:
        theirs, _, how = key.partition("^")
        first, *others = target.split("+")
        stem = first.rpartition(".")[0]
        stacked = [first, *(f"{stem}.{name}" for name in others)]
        pattern = re.compile(re.escape(first).replace(r"\*", r"(\d+)") + r"(\.weight|\.bias)?")
        for name in names:
            match = pattern.fullmatch(name)
            if match is not None:
                *layer, suffix = match.groups()
                number, suffix = "".join(layer), suffix or ""
                ours = tuple(one.replace("*", number) + suffix for one in stacked)
                rules.append(Rule(theirs.replace("*", number) + suffix, ours, how))
    return rules


def check_shapes(
    rules: Iterable[Rule], theirs: Mapping[str, tuple[int, ...]], ours: Mapping[str, Tensor]
) -> None:
    """Raise UserError naming the first tensors that are missing, left over, or of another shape."""
    errors, known, covered = [], set[str](), set[str]()
    for rule in rules:
        known.add(rule.theirs)
        covered.update(rule.ours)
        expected = tuple(rule.export(ours).shape)
        if rule.theirs not in theirs:
            errors.append(f"{rule.theirs} is missing")
        elif theirs[rule.theirs] != expected:
            errors.append(f"{rule.theirs} is {theirs[rule.theirs]}, expected {expected}")
    errors += [f"{name} is left over" for name in theirs if name not in known]
    if errors:
        shown = "; ".join(errors[:3])
        raise UserError(f"the tensors do not fit config.json: {shown} ({len(errors)} in all)")
    assert covered == set(ours), f"no rule for {sorted(set(ours) ^ covered)[:3]}"


def load_parameters(rules: Iterable[Rule], read: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Return the parameters of their tensors. Raises: UserError if two tensors of one differ.

    read: returns their tensor of a name.
    """
    own: dict[str, Tensor] = {}
    for rule in rules:
        for name, value in rule.load(read(rule.theirs)).items():
            if name in own and not torch.equal(own[name], value):
                raise UserError(f"{rule.theirs} must equal the tensor of the other stack")
            own[name] = value
    return own
