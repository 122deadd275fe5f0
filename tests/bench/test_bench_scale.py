import resource
import time
import tracemalloc

import pytest

import dpmech as dm

N = 1_000_000
STRATEGIES = [
    dm.LambdaCGD(N, 0.999),
    dm.SquareRoot(N),
    dm.SquareRoot(N, 64),
    dm.InverseSquareRoot(N, 64),
    dm.BandedToeplitz(N, [1.0, -0.5, 0.25]),
    dm.BandedInverse(N, [1.0, -0.5, -0.25]),
    dm.BLT(N, [0.99527, 0.87344, 0.42784], [0.1293, 0.2059, 0.1672]),
]
SCHEMA = dm.MinSep(N // 10, 10)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("call", [dm.sensitivity, dm.rmse, dm.max_se], ids=lambda call: call.__name__)
def test_a_million_steps(benchmark, call, strategy):
    def once():
        fresh = dm.Strategy.from_dict(strategy.to_dict())  # nothing cached
        tracemalloc.start()
        call(fresh, SCHEMA)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    def timed():
        fresh = dm.Strategy.from_dict(strategy.to_dict())
        start = time.perf_counter()
        call(fresh, SCHEMA)
        return time.perf_counter() - start

    peak = once()
    seconds = benchmark.pedantic(timed, rounds=3)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    label = f"{call.__name__} {strategy!r}"
    print(f"{label}: {seconds:.2f} s, peak {peak / 1e6:.0f} MB, max RSS {resident / 1e3:.0f} MB")
    assert peak < 500e6
