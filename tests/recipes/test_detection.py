"""Metrics of detected boxes and events, computed by hand."""

import numpy as np
import pytest

from regard.data.sound.events import SoundEvent
from regard.recipes.metrics.detection import (
    Detections,
    Truth,
    average_precision,
    box_iou,
)
from regard.recipes.metrics.events import event_scores, labels_per_second, match_events

NAMES = ("cat", "dog")


def detections(*rows, sides=4):
    """Return the detections (score, class, box) of an image or a cloud."""
    scores, classes, boxes = zip(*rows, strict=True) if rows else ((), (), ())
    numbers = np.array(boxes, np.float64).reshape(-1, sides)
    return Detections(np.array(scores), np.array(classes, np.int64), numbers)


def truth(*rows, sides=4):
    """Return the annotated boxes (class, box) of an image or a cloud."""
    classes, boxes = zip(*rows, strict=True) if rows else ((), ())
    numbers = np.array(boxes, np.float64).reshape(-1, sides)
    areas = numbers[:, sides // 2 :].prod(1)
    return Truth(numbers, np.array(classes, np.int64), areas, np.zeros(len(rows), np.bool_))


def score(answers, truths, threshold=0.5):
    return average_precision(answers, truths, NAMES, threshold=threshold)


def test_perfect_boxes_have_the_highest_score():
    cat, dog = (0, (10, 10, 50, 40)), (1, (100, 20, 30, 30))
    scores = score([detections((0.9, *cat), (0.8, *dog)), detections()], [truth(cat, dog), truth()])
    hundred = pytest.approx(100)
    perfect = {"ap50": hundred, "precision": 100, "recall": 100, "f1": 100, "examples": 1}
    # No box is large, so there is no such number.
    names = ["ap", "ap50", "ap75", "ar", "ap_small", "ap_medium", "ar_small", "ar_medium"]
    expected = dict.fromkeys(names, hundred)
    assert scores == expected | {"classes": {"cat": perfect, "dog": perfect}}


def test_average_precision_by_hand():
    # One of two cats is detected, at IoU 0.8, ranked after a false positive: precision 1/2 up to
    # recall 1/2.
    truths = [truth((0, (0, 0, 100, 100)), (0, (300, 300, 100, 100)))]
    scores = score([detections((0.9, 0, (600, 0, 50, 50)), (0.5, 0, (0, 0, 100, 80)))], truths)
    # 51 of 101 recalls are reached.
    assert scores["ap50"] == pytest.approx(100 * 0.5 * 51 / 101, abs=1e-6)
    assert scores["ap75"] == scores["ap50"]
    lower = [detections((0.9, 0, (0, 0, 100, 72)))]  # IoU 0.72
    assert score(lower, truths)["ap75"] == 0 < score(lower, truths)["ap50"]
    # IoU 0.8 is enough at 0.50, 0.55 .. 0.80: seven of ten.
    assert scores["ap"] == pytest.approx(0.7 * scores["ap50"], abs=1e-6)
    assert scores["classes"]["dog"]["ap50"] == 0
    # Half of the cats is found, at seven of ten IoU; dogs do not occur.
    assert scores["ar"] == pytest.approx(0.7 * 50)


def test_average_precision_and_recall_of_each_size_by_hand():
    # The small cat is found, the large one is not.
    truths = [truth((0, (0, 0, 20, 20)), (0, (100, 100, 200, 200)))]
    scores = score([detections((0.9, 0, (0, 0, 20, 20)))], truths)
    sizes = {name: value for name, value in scores.items() if name.startswith(("ap_", "ar_"))}
    assert sizes == pytest.approx({"ap_small": 100, "ap_large": 0, "ar_small": 100, "ar_large": 0})
    assert scores["ar"] == pytest.approx(50)


def test_second_detection_of_a_box_is_a_false_positive():
    truths = [truth((0, (0, 0, 100, 100)), (0, (200, 0, 100, 100)))]
    predictions = (0.9, 0, (0, 0, 100, 100)), (0.6, 0, (200, 0, 100, 100))
    assert score([detections(*predictions)], truths)["ap50"] == pytest.approx(100)
    twice = (predictions[0], (0.8, 0, (1, 1, 100, 100)), predictions[1])
    assert score([detections(*twice)], truths)["ap50"] < 90


def test_precision_and_recall_of_a_class_at_a_threshold_by_hand():
    truths = [truth((0, (0, 0, 100, 100)), (0, (200, 0, 100, 100)), (1, (400, 0, 50, 50))), truth()]
    answers = [
        # IoU 0.9 with the first cat; the same cat again (IoU 0.6); a dog in place of a cat; a cat
        # of a low score.
        detections(
            (0.9, 0, (0, 0, 100, 90)),
            (0.8, 0, (0, 0, 100, 60)),
            (0.7, 1, (200, 0, 100, 100)),
            (0.2, 0, (200, 0, 100, 100)),
        ),
        detections((0.6, 1, (0, 0, 9, 9))),
    ]
    rows = score(answers, truths, 0.5)["classes"]
    keys = ("precision", "recall", "f1", "examples")
    assert [rows["cat"][key] for key in keys] == [50, 50, 50, 2]
    assert [rows["dog"][key] for key in keys] == [0, 0, 0, 1]
    lower = score(answers, truths, 0.1)["classes"]["cat"]
    assert (lower["precision"], lower["recall"]) == (pytest.approx(200 / 3), 100)
    assert score(answers, truths, 0.85)["classes"]["cat"]["precision"] == 100


def test_detections_in_a_crowd_of_their_class_are_no_errors():
    (boxes, classes, areas, _) = truth((0, (0, 0, 10, 10)), (0, (50, 50, 60, 60)))
    truths = [Truth(boxes, classes, areas, np.array([False, True]))]
    inside = ((0.9, 0, (0, 0, 10, 10)), (0.8, 0, (50, 50, 9, 9)), (0.7, 0, (45, 50, 10, 9)))
    row = score([detections(*inside)], truths)["classes"]["cat"]
    assert (row["precision"], row["recall"], row["examples"]) == (100, 100, 1)
    others = (*inside, (0.6, 0, (44, 50, 10, 9)), (0.6, 1, (50, 50, 9, 9)))
    rows = score([detections(*others)], truths)["classes"]
    assert (rows["cat"]["precision"], rows["dog"]["precision"]) == (50, 0)


def test_box_takes_the_free_one_of_the_largest_overlap():
    # Both overlap the second box; the first detection takes the one that it overlaps more.
    truths = [truth((0, (0, 0, 10, 10)), (0, (0, 4, 10, 10)))]
    answers = [detections((0.9, 0, (0, 1, 10, 10)), (0.8, 0, (0, 3, 10, 10)))]
    assert score(answers, truths, 0.5)["classes"]["cat"]["recall"] == 100


def test_no_detections_or_no_boxes_score_zero():
    assert score([detections()], [truth((0, (0, 0, 9, 9)))])["ap"] == 0
    assert score([detections((0.9, 0, (0, 0, 9, 9)))], [truth()])["ap"] == 0


def score_clouds(answers, truths):
    """Return scores of boxes (score, class, first corner and sizes), in a list per cloud."""
    found = [detections(*rows, sides=6) for rows in answers]
    return score(found, [truth(*rows, sides=6) for rows in truths], threshold=0.6)


def test_overlap_of_boxes_in_space_by_hand():
    others = {
        (1, 0, 0, 2, 2, 2): 4 / 12,  # shifted by 1 along one axis
        (1, 1, 1, 2, 2, 2): 1 / 15,  # along three
        (0.5, 0.5, 0.5, 1, 1, 1): 1 / 8,  # a smaller one inside
        (2, 0, 0, 1, 1, 1): 0,  # one that only touches
        (0, 0, 0.5, 2, 2, 3): 6 / 14,
    }
    cube = np.array([(0, 0, 0, 2, 2, 2)], np.float64)
    iou = box_iou(cube, np.array([*others], np.float64))
    np.testing.assert_allclose(iou, [[*others.values()]], atol=1e-12)


def test_boxes_in_space_match_within_their_class_and_cloud():
    box, other = (0, 0, 0, 1, 2, 3), (5, 0, 0, 1, 2, 3)
    hundred = pytest.approx(100)
    right = score_clouds([[(0.9, 0, box)], [(0.5, 1, box)]], [[(0, box)], [(1, box)]])
    assert (right["ap25"], right["ap50"]) == (hundred, hundred)
    assert [row["ap25"] for row in right["classes"].values()] == [hundred, hundred]
    for answers, truths in [
        ([[(0.9, 1, box)], [(0.5, 0, box)]], [[(0, box)], [(1, box)]]),
        ([[], [(0.5, 0, box)]], [[(0, box)], []]),
        ([[]], [[(0, box)]]),
    ]:
        assert score_clouds(answers, truths)["ap25"] == 0
    twice = [(0.9, 0, box), (0.8, 0, box), (0.7, 0, other)]
    scores = score_clouds([twice], [[(0, box), (0, other)]])
    assert scores["ap25"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101, abs=1e-6)


def test_events_match_by_label_and_onset():
    reference = [SoundEvent(1.0, 0.5, "a"), SoundEvent(1.02, 0.5, "a"), SoundEvent(2.0, 0.4, "b")]
    predicted = [SoundEvent(1.03, 0.5, "a"), SoundEvent(2.06, 0.4, "b"), SoundEvent(2.0, 0.4, "a")]
    assert match_events(predicted, reference, onset=0.05) == [(0, 1)]
    assert match_events(predicted, reference, onset=0.2) == [(0, 1), (1, 2)]
    assert match_events([], reference, onset=0.2) == []


def test_matching_is_maximal():
    # The first answer could take either; taking the nearer one would leave the second without.
    reference = [SoundEvent(1.0, 0.5, "a"), SoundEvent(1.04, 0.5, "a")]
    predicted = [SoundEvent(1.03, 0.5, "a"), SoundEvent(1.08, 0.5, "a")]
    assert match_events(predicted, reference, onset=0.05) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("duration", "pairs"), [(1.65, [(0, 0)]), (1.55, [])])
def test_offset_counts_if_requested(duration, pairs):
    reference, predicted = [SoundEvent(1.0, 2.0, "a")], [SoundEvent(1.0, duration, "a")]
    # Within a fifth of 2 s.
    assert match_events(predicted, reference, onset=0.2, with_offset=True) == pairs


def test_event_scores_by_hand():
    reference = [[SoundEvent(0.5, 0.4, "a"), SoundEvent(2.0, 0.5, "b")], []]
    predicted = [
        [SoundEvent(0.52, 0.5, "a"), SoundEvent(2.1, 0.5, "b")],
        [SoundEvent(0.2, 0.3, "a")],
    ]
    scores = event_scores(predicted, reference)
    assert scores["f1"] == pytest.approx(100 * 2 * 1 / 5)
    assert scores["f1_200ms"] == pytest.approx(100 * 2 * 2 / 5)
    rows, keys = scores["classes"], ("precision", "recall", "examples")
    assert [rows["a"][key] for key in keys] == [50, 100, 1]
    assert [rows["b"][key] for key in keys] == [0, 0, 1]
    # Seconds: a in 0 (both; 0.52 to 1.02 also in 1), b in 2; the other sound: a in 0, a false
    # positive.
    assert scores["f1_segments"] == pytest.approx(100 * 2 * 2 / (4 + 2))
    assert scores["onset_ms"] == pytest.approx(20)
    assert scores["duration_ms"] == pytest.approx(100)


def test_silence_without_detections_has_no_timing_errors():
    assert event_scores([[]], [[]]) == {"f1": 0.0, "f1_200ms": 0.0, "f1_segments": 0.0}
    assert labels_per_second([SoundEvent(0.9, 0.3, "a")]) == {(0, "a"), (1, "a")}
