"""Hypotheses that ended: only the best few of a sentence are kept, each as a trail back to its tokens.

A search never copies token lists. Each step records which row each new row continues and by which token, and
an ended hypothesis is (step, row, token): its tokens are read off the records, last to first, at the end.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decode.hypothesis import Hypothesis
from regard.telling import Answer


class Moves(NamedTuple):
    """How hypotheses continue; three tensors of one shape."""

    log_prob: Tensor
    """Of the whole hypothesis."""
    row: Tensor
    """The row of the step that it continues."""
    token: Tensor
    """The token that continues it."""


class Pool:
    """The best `n_best` ended hypotheses of every sentence; score -inf where there is none yet."""

    def __init__(self, count: int, *, n_best: int, device: torch.device) -> None:
        self.score = torch.full((count, n_best), -torch.inf, dtype=torch.float32, device=device)
        self.log_prob = torch.full((count, n_best), -torch.inf, dtype=torch.float32, device=device)
        self.trail = torch.zeros(count, n_best, 3, dtype=torch.int64, device=device)  # step, row, token

    def add(self, sentence: Tensor, score: Tensor, moves: Moves, *, step: int) -> None:
        """Merge what ended at `step` (score -inf: it did not) into the pools of the sentences."""
        n_best = self.score.shape[1]
        trail = torch.stack((torch.full_like(moves.row, step), moves.row, moves.token), dim=-1)
        scores = torch.cat((self.score[sentence], score), dim=1)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        order = order[:, :n_best]
        log_prob = torch.cat((self.log_prob[sentence], moves.log_prob), dim=1)
        trail = torch.cat((self.trail[sentence], trail), dim=1)
        self.score[sentence] = scores[:, :n_best]
        self.log_prob[sentence] = log_prob.gather(1, order)
        self.trail[sentence] = trail.gather(1, order[..., None].expand(-1, -1, 3))

    def read(self, history: list[Moves], *, eos: int) -> list[list[Hypothesis]]:
        """The pools as hypotheses, best first; history: the moves that went on after each step, (rows,)."""

        def hypothesis(score: float, log_prob: float, said: Answer) -> Hypothesis:
            finished = said.tokens[-1] == eos
            tokens = list(said.tokens[:-1] if finished else said.tokens)
            return Hypothesis(tokens=tokens, score=score, log_prob=log_prob, finished=finished)

        pools = zip(self.score.tolist(), self.log_prob.tolist(), self.answers(history), strict=True)
        # An answer for each finite score, which come first.
        return [[hypothesis(*entry) for entry in zip(*pool, strict=False)] for pool in pools]

    def answers(self, history: list[Moves]) -> list[list[Answer]]:
        """The tokens of each hypothesis, EOS included, and the row of each step that said them."""
        rows = [moves.row.tolist() for moves in history]
        tokens = [moves.token.tolist() for moves in history]

        def answer(trail: list[int]) -> Answer:
            step, row, token = trail
            said, way = [token], [row]
            for time in range(step - 2, -1, -1):
                said.append(tokens[time][row])
                row = rows[time][row]
                way.append(row)
            return Answer(said[::-1], way[::-1])

        pools = zip(self.score.tolist(), self.trail.tolist(), strict=True)
        return [[answer(trail) for score, trail in zip(*pool, strict=True) if score > -torch.inf] for pool in pools]
