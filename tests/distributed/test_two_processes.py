"""Two processes with gloo: noise is added once, shards draw their own, and everything resumes.

Run as a script it is one of the processes; the tests look at what both of them saved.
"""

import copy

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from dpmech.optim import (  # noqa: E402
    AdaptiveClip,
    ClippedSum,
    FlatClipping,
    NoiseStream,
    PrivateOptimizer,
)
from tests.support.two_processes import WORLD, as_process, found_by_both  # noqa: E402

pytestmark = pytest.mark.slow  # two processes import torch

N = 6
CLIP = 0.5
SHAPES = [(4, 3), (5,), ()]


def calibration(eps=8.0):
    return dm.calibrate_sigma(dm.SquareRoot(N, 3), eps, 1e-5)


def parameters():
    rng = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=rng)) for shape in SHAPES]


def samples_of(step):
    """Per-example gradients of one batch, all processes together; batches of 0 to 7 examples."""
    rng = torch.Generator().manual_seed(step)
    return [torch.randn([0, 7, 6, 1, 4, 5][step], *shape, generator=rng) for shape in SHAPES]


def train(opt, params, steps, *, rank=0, world=1, micro=1):
    """Process `rank` has every `world`-th example, in `micro` microbatches."""
    for step in steps:
        mine = [sample[rank::world] for sample in samples_of(step)]
        for part in range(micro):
            for param, sample in zip(params, mine, strict=True):
                param.grad_sample = sample[part::micro]
            opt.accumulate()
        opt.step()
        opt.zero_grad()


def build(params, **options):
    options = {"generator": 3} | options
    cal = options.pop("cal", None) or calibration()
    return PrivateOptimizer(torch.optim.Adam(params, lr=0.1), cal, CLIP, 4, **options)


# ---- one process


def refusal(call):
    """The message with which `call` is refused."""
    try:
        call()
    except dm.exceptions.CertificateError as error:
        return str(error)
    return "not refused"


def replicated(rank):
    found = {}
    for micro in (1, 2):
        params = parameters()
        opt = build(params, generator=3 + rank)  # the key of the first process is what counts
        train(opt, params, range(3), rank=rank, world=WORLD, micro=micro)
        state = copy.deepcopy(opt.state_dict())  # torch hands out its own tensors, not copies
        weights = [param.detach().clone() for param in params]
        train(opt, params, range(3, N), rank=rank, world=WORLD, micro=micro)
        found[f"weights {micro}"] = [param.detach() for param in params]
        opt.close()
        again = parameters()
        with torch.no_grad():
            for param, value in zip(again, weights, strict=True):
                param.copy_(value)
        resumed = build(again, generator=None)
        resumed.load_state_dict(state)
        train(resumed, again, range(3, N), rank=rank, world=WORLD, micro=micro)
        found[f"resumed {micro}"] = [param.detach() for param in again]
        resumed.close()
    stream = NoiseStream(calibration(), parameters())  # from the entropy of each process' own system
    found["entropy"] = [torch.cat([x.ravel() for x in stream.step()]) for _ in range(N)]
    params = parameters()
    opt = build(params)
    total = [torch.ones(shape) / 100.0 for shape in SHAPES]
    opt.accumulate(ClippedSum(params, total, FlatClipping(CLIP), reduced=True))
    opt.step()
    found["reduced"] = [param.grad for param in params]
    return found


def refused(rank):
    state = build(parameters(), generator=4).state_dict()
    other = build(parameters(), generator=5).state_dict()
    return {
        "claims": refusal(lambda: build(parameters(), cal=calibration(8.0 + rank))),
        "denominators": refusal(
            lambda: PrivateOptimizer(torch.optim.SGD(parameters(), lr=0.1), calibration(), CLIP, 4 + rank)
        ),
        "layouts": refusal(lambda: NoiseStream(calibration(), [torch.zeros(3 + rank)])),
        "states": refusal(lambda: build(parameters()).load_state_dict([state, other][rank])),
    }


def adaptive(rank, world):
    """The norm after every step, and the weights."""
    params = parameters()
    rule = AdaptiveClip(CLIP, quantile=0.7, rate=0.5, count_share=0.5)
    opt = PrivateOptimizer(torch.optim.SGD(params, lr=0.1), calibration(), rule, 4, generator=3)
    norms = []
    for step in range(N):
        train(opt, params, [step], rank=rank, world=world, micro=2)
        norms.append(opt.clip_norm)
    opt.close()
    return {"norms": norms, "weights": [param.detach() for param in params]}


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,))
    whole = [torch.zeros(5, 3), torch.zeros(1, 2), torch.zeros(4), torch.zeros(3)]
    places = [Shard(0), Shard(0), Shard(0), Replicate()]
    params = [
        torch.nn.Parameter(distribute_tensor(one, mesh, [place]))
        for one, place in zip(whole, places, strict=True)
    ]
    stream = NoiseStream(calibration(), params, CLIP, 3)
    rows = [stream.step() for _ in range(3)]
    state = stream.state_dict()
    rest = [stream.step() for _ in range(3)]
    stream.close()
    resumed = NoiseStream(calibration(), params, CLIP)
    resumed.load_state_dict(state)
    again = [resumed.step() for _ in range(3)]
    return {
        "noise": [[one.full_tensor() for one in row] for row in rows + rest],
        "local": [[one.to_local() for one in row] for row in rows],
        "resumed": all(
            torch.equal(a.to_local(), b.to_local())
            for old, new in zip(rest, again, strict=True)
            for a, b in zip(old, new, strict=True)
        ),
    }


def fully_sharded():
    """FSDP2: gradients are reduced by averaging, so that the sum over examples is the mean times WORLD."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    start = [param.detach().clone() for param in model.parameters()]
    fully_shard(model)
    params = list(model.parameters())
    noise = NoiseStream(calibration(), params, 100.0, 3).step()
    opt = PrivateOptimizer(torch.optim.SGD(params, lr=1.0), calibration(), 100.0, 4, generator=3)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    model(x[torch.distributed.get_rank() :: WORLD]).square().sum().backward()
    opt.accumulate(ClippedSum.from_grads(params, FlatClipping(100.0), scale=WORLD, reduced=True))
    opt.step()
    return {
        "start": start,
        "x": x,
        "noise": [one.full_tensor() for one in noise],
        "weights": [param.detach().full_tensor() for param in params],
    }


def find(rank, _):
    return {
        "replicated": replicated(rank),
        "refused": refused(rank),
        "sharded": sharded(),
        "fully sharded": fully_sharded(),
        "adaptive": adaptive(rank, WORLD),
    }


# ---- what both of them found


@pytest.fixture(scope="module")
def ranks():
    return found_by_both(__file__)


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("micro", [1, 2])
def test_both_train_alike_and_like_one_process_with_all_examples(ranks, micro):
    weights = [rank["replicated"][f"weights {micro}"] for rank in ranks]
    assert equal(*weights)
    params = parameters()
    train(build(params), params, range(N))
    for one, both in zip(params, weights[0], strict=True):
        np.testing.assert_allclose(one.detach().numpy(), both.numpy(), rtol=1e-4, atol=1e-5)
    moved = parameters()
    assert not any(torch.allclose(a, b) for a, b in zip(moved, weights[0], strict=True))


@pytest.mark.parametrize("micro", [1, 2])
def test_both_resume_bit_for_bit(ranks, micro):
    for rank in ranks:
        assert equal(rank["replicated"][f"weights {micro}"], rank["replicated"][f"resumed {micro}"])


def test_both_draw_the_noise_of_the_first(ranks):
    first, second = (torch.stack(rank["replicated"]["entropy"]) for rank in ranks)
    assert torch.equal(first, second)
    assert np.unique(first.numpy()).size == first.numel()


def test_an_adaptive_clip_norm_follows_the_count_of_all(ranks):
    first, second = (rank["adaptive"] for rank in ranks)
    alone = adaptive(0, 1)
    assert first["norms"] == second["norms"] == alone["norms"]
    assert len(set(alone["norms"])) == N
    assert equal(first["weights"], second["weights"])
    for one, other in zip(first["weights"], alone["weights"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_sum_that_is_reduced_already_counts_once(ranks):
    noise = NoiseStream(calibration(), parameters(), CLIP, 3).step()
    for rank in ranks:
        for grad, row in zip(rank["replicated"]["reduced"], noise, strict=True):
            np.testing.assert_allclose(grad.numpy(), ((row + 0.01) / 4).numpy(), rtol=1e-5, atol=1e-6)


def test_disagreement_is_refused_on_both(ranks):
    for rank in ranks:
        assert "disagree on the noise" in rank["refused"]["claims"]
        assert "disagree on the optimizer" in rank["refused"]["denominators"]
        assert "disagree on the noise" in rank["refused"]["layouts"]
        assert "disagree on the resumed noise" in rank["refused"]["states"]


def test_shards_draw_their_own_noise_and_replicas_the_same(ranks):
    noise = [
        torch.stack([torch.cat([x.ravel() for x in row]) for row in rank["sharded"]["noise"]])
        for rank in ranks
    ]
    assert torch.equal(*noise)  # gathered, both see the same whole parameters
    assert noise[0].shape == (N, 15 + 2 + 4 + 3)
    assert np.unique(noise[0].numpy()).size == noise[0].numel()  # nothing is shared
    shapes = [[tuple(x.shape) for x in rank["sharded"]["local"][0]] for rank in ranks]
    assert shapes == [[(3, 3), (1, 2), (2,), (3,)], [(2, 3), (0, 2), (2,), (3,)]]
    # The first shard of a parameter is its plain noise: a shard is one more coordinate of the counter.
    plain = NoiseStream(
        calibration(), [torch.zeros(3, 3), torch.zeros(1, 2), torch.zeros(2), torch.zeros(3)], CLIP, 3
    )
    assert equal(plain.step(), ranks[0]["sharded"]["local"][0])
    assert all(rank["sharded"]["resumed"] for rank in ranks)


def test_fully_sharded_training(ranks):
    for rank in ranks:
        found = rank["fully sharded"]
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        with torch.no_grad():
            for param, value in zip(model.parameters(), found["start"], strict=True):
                param.copy_(value)
        model(found["x"]).square().sum().backward()
        for param, noise, weights in zip(model.parameters(), found["noise"], found["weights"], strict=True):
            expected = param - (param.grad + noise) / 4
            np.testing.assert_allclose(weights.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-4)
    assert equal(*(rank["fully sharded"]["weights"] for rank in ranks))


if __name__ == "__main__":
    as_process(find)
