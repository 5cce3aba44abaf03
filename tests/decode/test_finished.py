import torch

from regard.decode.finished import Candidates, FinishedHypotheses


def test_finished_hypotheses_keep_the_best_scores_and_the_first_of_equal_ones() -> None:
    finished = FinishedHypotheses(3, n_best=2, device=torch.device("cpu"))
    rows = torch.zeros(1, 2, dtype=torch.int64)
    sentence = torch.tensor([1])
    steps = [
        (torch.tensor([[-2.0, -3.0]]), torch.tensor([[4, 5]])),
        (torch.tensor([[-2.0, -torch.inf]]), torch.tensor([[6, 7]])),
        (torch.tensor([[-1.0, -2.0]]), torch.tensor([[8, 9]])),
    ]
    for step, (score, token) in enumerate(steps[:2], start=1):
        finished.add(sentence, score, Candidates(2 * score, rows, token), step=step)
    assert finished.pointers[1].tolist() == [[1, 0, 4], [2, 0, 6]]
    score, token = steps[2]
    finished.add(sentence, score, Candidates(2 * score, rows, token), step=3)
    assert finished.pointers[1].tolist() == [[3, 0, 8], [1, 0, 4]]
    assert finished.score.tolist() == [[-torch.inf] * 2, [-1.0, -2.0], [-torch.inf] * 2]
    assert finished.log_prob[1].tolist() == [-2.0, -4.0]


def test_tokens_are_traced_back_through_the_rows() -> None:
    finished = FinishedHypotheses(1, n_best=3, device=torch.device("cpu"))
    history = [
        Candidates(torch.zeros(3), torch.tensor([0, 0, 0]), torch.tensor([10, 11, 12])),
        Candidates(torch.zeros(2), torch.tensor([2, 1]), torch.tensor([20, 21])),
    ]
    score = torch.tensor([[-1.0, -1.5]])
    candidates = Candidates(score * 3, torch.tensor([[1, 0]]), torch.tensor([[3, 30]]))
    finished.add(torch.tensor([0]), score, candidates, step=3)
    ((first, second),) = finished.hypotheses(history, eos=3)
    assert (first.tokens, first.finished) == ([11, 21], True)
    assert (first.score, first.log_prob) == (-1.0, -3.0)
    assert (second.tokens, second.finished, second.score) == ([12, 20, 30], False, -1.5)
