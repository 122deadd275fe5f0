import itertools

import pytest

from dpmech.reports import attacks_of
from dpmech.reports.attacks import picture_of
from tests.support.reviewed import small


def points(text):
    return [tuple(map(float, pair.split(","))) for pair in text.split()]


@pytest.mark.parametrize("claim_only", [True, False])
def test_curve_and_marks_stand_where_the_numbers_say(claim_only):
    own = small()
    found = attacks_of(own, claim_only=claim_only, progress=lambda line: None)
    picture = picture_of(found, (own.budget.eps, own.budget.delta))
    left, top, right, bottom = picture.frame
    curve = points(picture.curve)
    assert curve[0][0] == left
    assert curve[-1] == (right, top)
    assert all(before[0] < after[0] and before[1] >= after[1] for before, after in itertools.pairwise(curve))
    assert all(top <= y <= bottom for _, y in curve)
    # A rate of 1 % is in the middle of four decades, and a share is read off the height.
    (at, other) = picture.marks
    assert at.x == pytest.approx((left + right) / 2)
    assert (bottom - at.y) / (bottom - top) == pytest.approx(found.upper(0.01))
    assert at.label == f"{float(at.label.split()[0])} %"
    assert float(at.label.split()[0]) >= 100.0 * found.upper(0.01)
    assert other.x < at.x
    assert bool(picture.claim) is not claim_only
    if picture.claim:
        # Never below the curve: upward is towards smaller y.
        assert all(c[1] <= p[1] + 0.011 for c, p in zip(points(picture.claim), curve, strict=True))
    assert points(picture.beyond)[0] == (left, top)
    assert points(picture.guess)[-1] == (right, top)
    assert [mark.label for mark in picture.across] == ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"]
