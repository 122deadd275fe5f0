"""Compositions: a hundred releases in one list, and other packages; run with `pytest tests/bench -s`."""

import pytest

import dpmech as dm
from dpmech.engines.profiles.curves import SampledPart
from tests.support.composition_peers import LISTS, PACKAGES, answer
from tests.support.non_adaptive import whole


@pytest.mark.slow
def test_bench_a_hundred_releases(benchmark):
    sampled = [
        SampledPart(0.005 + 0.0005 * index, 1.0 + 0.02 * index, 200 + 10 * index, tight=True)
        for index in range(50)
    ]
    square = sum((10.0 + index) ** -2 for index in range(50))
    found = benchmark.pedantic(
        lambda: whole((square, square), sampled).epsilon(1e-5, renyi=False), rounds=1, iterations=1
    )
    assert isinstance(found, dm.Bounds)
    assert 10.2 < found.lower <= found.upper < 10.3
    assert found.upper / found.lower < 1.0001


@pytest.mark.slow
def test_bench_beside_other_packages(benchmark):
    """The table of docs/other_libraries.md#compositions, all of it in one run."""
    table = benchmark.pedantic(
        lambda: {name: {one: answer(one, name) for one in PACKAGES} for name in LISTS},
        rounds=1,
        iterations=1,
    )
    print(f"\n| mechanisms | {' | '.join(PACKAGES)} |\n|{'---|' * (1 + len(PACKAGES))}")
    for name, row in table.items():
        print(f"| {name} | {' | '.join(map(written, row.values()))} |")
    for row in table.values():
        lower, upper = row["dpmech"]["ends"]
        assert lower <= upper
        for one, found in row.items():
            if one != "dpmech" and "ends" in found:
                # Lattices of the others are coarser, and open upwards: none is far below.
                assert found["ends"][1] >= lower * (1.0 - 1e-6)


def written(found):
    if "said" in found:
        return found["said"]
    lower, upper = found["ends"]
    ends = f"{upper:.7g}" if lower is None else f"[{lower:.7g}, {upper:.7g}]"
    return f"{ends}, {found['seconds']:.1f} s"
