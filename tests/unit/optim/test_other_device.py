"""Private training on a device that is not the CPU: the same results, and no tensor on the wrong side."""

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dpmech.optim import (  # noqa: E402
    CanaryData,
    CanaryWatch,
    FlatClipping,
    NoiseMeter,
    PrivateOptimizer,
    clipped_gradients,
    load_checkpoint,
    save_checkpoint,
)
from dpmech.optim.clipping.clipped_sum import Accumulator  # noqa: E402
from tests.support.device_runs import SETUPS, Run, by_loss  # noqa: E402
from tests.support.other_device import There, known, moved, other, other_device  # noqa: E402
from tests.support.quick_cases import slow_but  # noqa: E402
from tests.support.training import classification, classifier, cross_entropy  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not known(), reason="this torch registers no device from Python"),
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore::dpmech.optim.NonFiniteGradientsWarning"),
]


def finished(options, *, there, steps=8):
    run = Run(options, there=there)
    run.train(steps)
    run.close()
    return run


# The keys of ciphers cannot be repeated.
REPEATED = [name for name in SETUPS if not name.startswith("generator: secure")]


@pytest.mark.parametrize("name", slow_but(REPEATED, REPEATED.index("clipping: adaptive, ghost")))
def test_a_run_ends_at_the_same_weights(name):
    options = SETUPS[name]
    here = finished(options, there=False)
    with other_device():
        there = finished(options, there=True)
        assert all(type(param) is There for param in there.model.parameters())
        state = [value for one in there.optimizer.state.values() for value in one.values()]
        assert all(type(one) is There for one in state if torch.is_tensor(one) and one.ndim)
        weights = there.weights()
    # Rows of an example that is left out are zeros there, and missing here: sums round differently.
    exact = "NaN" not in name
    torch.testing.assert_close(weights, here.weights(), rtol=0.0, atol=0.0 if exact else 1e-6)
    assert there.optimizer.clip_norm == here.optimizer.clip_norm
    assert there.optimizer.dropped_examples == here.optimizer.dropped_examples


@pytest.mark.parametrize(
    ("name", "generator"),
    [("secure", "aes-128-ctr, ziggurat"), ("secure-lattice", "aes-128-ctr, lattice")],
)
def test_ciphers_serve_another_device(name, generator):
    with other_device():
        there = finished(SETUPS[f"generator: {name}"], there=True, steps=2)
        assert there.optimizer.noise_generator == generator
        assert bool(there.weights().isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mode: per_example", "mode: ghost hooks", "noise: BLT", "clipping: adaptive"]
)
def test_a_run_resumes_there_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)  # else saving warns
    with other_device():
        whole = finished(SETUPS[name], there=True).weights()
        first = Run(SETUPS[name], there=True).train(3)
        save_checkpoint(tmp_path / "run.pt", first.private, first.optimizer, first.loader)
        first.close()
        second = Run(SETUPS[name] | {"generator": None, "rng": None}, there=True)
        load_checkpoint(tmp_path / "run.pt", second.private, second.optimizer, second.loader)
        rest = second.train(5)
        rest.close()
        assert torch.equal(rest.weights(), whole)


def test_an_unfinished_batch_is_saved_without_memory_of_the_device():
    total = torch.arange(3.0, dtype=torch.float64)
    with other_device():
        batch = Accumulator([There(torch.zeros(3)), There(torch.zeros(2))], FlatClipping(1.0), 1.0, None)
        batch._sums[0] = There(total)
        first, second = batch.state_dict()["sums"]
        assert type(first) is torch.Tensor
        assert first.data_ptr() != total.data_ptr()
        assert torch.equal(first, total)
        assert second is None
        batch.load_state_dict({"sums": [first, second], "dropped": 0})
        assert type(batch._sums[0]) is There
        assert torch.equal(batch._sums[0].cpu(), total)


def test_the_noise_is_measured_there():
    found = []
    for there in (False, True):
        with other_device():
            run = Run(by_loss("per_example"), there=there)
            meter = NoiseMeter(run.optimizer, run.model[0].weight)
            run.train()
            found.append(meter.released.cpu())
            assert run.optimizer.run_record().noise_check is not None
            run.close()
    torch.testing.assert_close(found[0], found[1], rtol=0.0, atol=0.0)


def test_canaries_are_watched_there():
    cal = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.Poisson(0.5))
    found = []
    for there in (False, True):
        data = CanaryData(classification(20), 10, target=0, rng=1)
        model = classifier(widths=(data.width, 6, 2))
        with other_device():
            model = moved(model) if there else model
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = PrivateOptimizer(sgd, cal, expected_batch_size=10, generator=1)
            watch = CanaryWatch(optimizer, data, model, cross_entropy, model[0].weight)
            for batch in dm.samplers.sampler_for(cal, len(data), rng=1):
                parts = [part.to(other()) if there else part for part in data.batch(batch)]
                optimizer.accumulate(clipped_gradients(model, cross_entropy, parts, 1.0))
                optimizer.step()
            found.append((watch.observations, watch.strengths))
            optimizer.close()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
