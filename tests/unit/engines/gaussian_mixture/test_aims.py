"""How far above the right point a proof is tried."""

import math

import pytest

from dpmech.engines.gaussian_mixture.pilots import _AIMS, _FAR_AIMS, Aim, best_aim


class Needing:
    """Pilots whose proof takes `scale` over the gap of log delta, squared; delta itself is `log_mean`."""

    samples = 8192

    def __init__(self, scale, log_mean, relative_error=0.0):
        self.scale, self.log_mean, self.relative_error = scale, log_mean, relative_error

    def expected_samples(self, log_goal, beta):
        assert beta == 0.25
        return self.scale / (log_goal - self.log_mean) ** 2


def chosen(scale, fall=20.0):
    asked = []

    def there(above):
        asked.append(above)
        return Needing(scale, math.log(1e-3) - fall * above)

    return best_aim(Needing(scale, math.log(1e-3)), fall, 1e-3, 0.25, 1e4, there), asked


def test_more_draws_for_a_proof_move_the_aim_up_and_none_are_looked_at_further_away_without_need():
    aims = [chosen(scale) for scale in (1e-2, 1.0, 1e2, 1e3, 3e4)]
    assert [aim.above for aim, _ in aims] == sorted(aim.above for aim, _ in aims)
    assert aims[0][0].above == _AIMS[0]
    for aim, asked in aims[:4]:
        assert aim.above in _AIMS
        assert aim.pilots is None
        assert asked == []


def test_of_all_aims_the_least_unwelcome_is_taken():
    for scale in (1e2, 1e4, 1e5, 2e5, 1e7):
        aim, _ = chosen(scale)
        costs = {above: Aim(above, scale / (20.0 * above) ** 2).cost(1e4) for above in (*_AIMS, *_FAR_AIMS)}
        assert aim.cost(1e4) == pytest.approx(min(costs.values()))
        assert costs[aim.above] == pytest.approx(min(costs.values()))


def test_far_aims_come_with_the_pilots_of_their_point():
    aim, asked = chosen(1e6)
    assert aim.above in _FAR_AIMS
    assert asked == list(_FAR_AIMS[: len(asked)])
    assert aim.pilots.log_mean == math.log(1e-3) - 20.0 * aim.above
    assert aim.draws == pytest.approx(1e6 / (20.0 * aim.above) ** 2)


def test_draws_that_find_the_root_count_as_those_of_the_proof():
    fall, error = 20.0, 0.05
    aim = best_aim(Needing(1e2, math.log(1e-3), error), fall, 1e-3, 0.25, 3e5, None, reach=1.0)
    assert aim.sizing == pytest.approx(8192 * (error / (0.25 * fall * aim.above)) ** 2)
    assert aim.cost(3e5) == pytest.approx(Aim(aim.above, aim.draws + aim.sizing).cost(3e5))
    assert aim.above > best_aim(Needing(1e2, math.log(1e-3)), fall, 1e-3, 0.25, 3e5, None, reach=1.0).above
