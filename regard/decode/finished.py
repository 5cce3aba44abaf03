"""Finished hypotheses of a beam search, stored as back-pointers.

The search never copies token lists. Each step records which row each new row continues and by which
token. A finished hypothesis is (step, row, token); its tokens are traced back through these records
at the end of the search.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decode.hypothesis import Hypothesis, make_hypothesis
from regard.trace import SearchOutput


class Candidates(NamedTuple):
    """Hypotheses extended by one token; three tensors of one shape."""

    log_prob: Tensor
    """Log-probability of the whole hypothesis."""
    row: Tensor
    """Row of the step that is extended."""
    token: Tensor
    """Token that extends it."""


class FinishedHypotheses:
    """Best finished hypotheses of every sentence so far; score -inf where there are fewer."""

    def __init__(self, count: int, *, n_best: int, device: torch.device) -> None:
        self.score = torch.full((count, n_best), -torch.inf, dtype=torch.float32, device=device)
        self.log_prob = torch.full((count, n_best), -torch.inf, dtype=torch.float32, device=device)
        # step, row, token
        self.pointers = torch.zeros(count, n_best, 3, dtype=torch.int64, device=device)

    def add(self, sentence: Tensor, score: Tensor, candidates: Candidates, *, step: int) -> None:
        """Merge the candidates that end at `step` (score -inf: does not end)."""
        n_best = self.score.shape[1]
        pointers = torch.stack(
            (torch.full_like(candidates.row, step), candidates.row, candidates.token), dim=-1
        )
        scores = torch.cat((self.score[sentence], score), dim=1)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        order = order[:, :n_best]
        log_prob = torch.cat((self.log_prob[sentence], candidates.log_prob), dim=1)
        pointers = torch.cat((self.pointers[sentence], pointers), dim=1)
        self.score[sentence] = scores[:, :n_best]
        self.log_prob[sentence] = log_prob.gather(1, order)
        self.pointers[sentence] = pointers.gather(1, order[..., None].expand(-1, -1, 3))

    def hypotheses(self, history: list[Candidates], *, eos: int) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first.

        history: the candidates that stayed live after each step, each (rows,).
        """
        results, scores, log_probs = [], self.score.tolist(), self.log_prob.tolist()
        for sentence, outputs in enumerate(self.outputs(history)):
            # There is an output for each finite score, and finite scores come first.
            entries = zip(outputs, scores[sentence], log_probs[sentence], strict=False)
            found = []
            for output, score, log_p in entries:
                found.append(make_hypothesis(output.tokens, eos=eos, score=score, log_prob=log_p))
            results.append(found)
        return results

    def outputs(self, history: list[Candidates]) -> list[list[SearchOutput]]:
        """Return the tokens of each hypothesis, and the row of each step that generated them."""
        step_rows = [candidates.row.tolist() for candidates in history]
        step_tokens = [candidates.token.tolist() for candidates in history]
        counts = (self.score > -torch.inf).sum(1).tolist()
        outputs = []
        for count, pointers in zip(counts, self.pointers.tolist(), strict=True):
            found = []
            for step, row, token in pointers[:count]:
                tokens, rows = [token], [row]
                for time in range(step - 2, -1, -1):
                    tokens.append(step_tokens[time][rows[-1]])
                    rows.append(step_rows[time][rows[-1]])
                found.append(SearchOutput(tokens[::-1], rows[::-1]))
            outputs.append(found)
        return outputs
