"""make_private with parameters that fully_shard divided: the sums, noise and steps of whole ones, resumed.

Run as a script it is one of two processes over gloo; the tests look at what both of them saved.
"""

import itertools
import re

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from dpmech.optim import (  # noqa: E402
    AdaptiveClip,
    ClippedSum,
    NoiseStream,
    PerLayerClipping,
    load_checkpoint,
    make_private,
    save_checkpoint,
)
from tests.support.training import classification, cross_entropy, declared  # noqa: E402
from tests.support.two_processes import WORLD, as_process, found_by_both  # noqa: E402

pytestmark = pytest.mark.slow  # two processes import torch

N, SIZE, BATCH = 6, 24, 8
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(SIZE // BATCH))
SPARSE = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, participation=dm.Poisson(2 / SIZE))
CLIP = 0.3  # below the norm of most gradients
MODES = ("per_example", "ghost", "loop")
CLIPPINGS = {
    "flat": {"clip_norm": CLIP},
    "adaptive": {"clip_norm": AdaptiveClip(CLIP, quantile=0.7, rate=0.5, count_share=0.5)},
    "per layer": {"clipping": lambda model: PerLayerClipping.split(CLIP, model.parameters())},
}


class Model(nn.Module):
    """Sizes that two processes cannot halve, a tied weight, a buffer and a frozen layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.norm = nn.Linear(3, 5), nn.Linear(5, 5), nn.LayerNorm(5)
        self.again, self.frozen, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.again.weight = self.middle.weight
        self.frozen.requires_grad_(requires_grad=False)
        self.register_buffer("shift", torch.arange(5.0))

    def forward(self, x):
        hidden = self.norm(torch.tanh(self.first(x)) + self.shift)
        hidden = torch.tanh(self.frozen(self.again(torch.tanh(self.middle(hidden)))))
        return torch.cat([self.last(hidden), -self.last(hidden)], dim=1)


class Writing(Model):
    """Writes what it sees into a weight."""

    def forward(self, x):
        with torch.no_grad():
            self.first.bias.add_(x.mean())
        return super().forward(x)


def run(mode="per_example", kind="flat", *, sharded, optimizer=torch.optim.SGD, **options):
    """Model, private model, optimizer and loader."""
    from torch.distributed.fsdp import fully_shard

    model = options.pop("model", Model)()
    if sharded:
        fully_shard(model.first, **options.pop("policy", {}))
        fully_shard(model)
    trained = [param for param in model.parameters() if param.requires_grad]
    given = {name: one(model) if callable(one) else one for name, one in CLIPPINGS[kind].items()}
    if "clipping" in given:
        given["clipping"] = PerLayerClipping.split(CLIP, trained)
    cal, size = options.pop("cal", CAL), options.pop("size", BATCH)
    loader = DataLoader(classification(SIZE), batch_size=size // WORLD)
    given = {"loss": cross_entropy, "clipping_mode": mode, "generator": 5, "rng": 2} | given | options
    made = make_private(
        model,
        optimizer(trained, lr=0.1),
        loader,
        cal,
        **given,
        **declared(cal, loader, expected_batch_size=size),
    )
    return (model, *made)


def whole(tensors):
    return [(one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone() for one in tensors]


def train(private, optimizer, loader, steps):
    """Take steps; the gradients of the first."""
    released = None
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for batch in itertools.islice(batches, steps):
        private.backward(*batch)
        optimizer.step()
        if released is None:
            params = [param for param in private.module.parameters() if param.requires_grad]
            released = whole(param.grad for param in params)
    return released


def noise(model, cal=CAL):
    """The noise of the first step, gathered."""
    params = [param for param in model.parameters() if param.requires_grad]
    stream = NoiseStream(cal, params, CLIP, 5)
    found = whole(stream.step())
    stream.close()
    return found


def one_example():
    """The sum of a batch of one example, of which the other process has none; and its index."""
    for seed in itertools.count():
        model, private, optimizer, loader = run(sharded=True, cal=SPARSE, size=2, rng=seed)
        if len(chosen := loader.sampler.indices(0)) == 1:
            break
        optimizer.close()
    released = train(private, optimizer, loader, 1)
    train(private, optimizer, loader, 2)
    optimizer.close()
    rows = [2 * one.double() - row for one, row in zip(released, noise(model, SPARSE), strict=True)]
    return {"index": int(chosen[0]), "sum": torch.cat([one.flatten() for one in rows])}


def trained(mode, kind, *, sharded):
    model, private, optimizer, loader = run(mode, kind, sharded=sharded)
    released = train(private, optimizer, loader, N)
    norm = optimizer.clip_norm
    evaluated = private(torch.ones(2, 3)).detach()
    train(private, optimizer, loader, 0)  # the evaluation left everything sharded
    record = str(optimizer.run_record())
    optimizer.close()
    found = {"released": released, "norm": norm, "evaluated": evaluated, "record": record}
    return found | {"weights": whole(model.parameters()), "noise": noise(model) if kind != "adaptive" else []}


def neighbours(mode):
    """The sums of the first batch with and without an example, without noise."""
    sums = []
    for absent in (False, True):
        model, private, optimizer, loader = run(mode, sharded=True)
        inputs, targets = next(iter(loader))
        weights = torch.ones(len(inputs))
        if absent and torch.distributed.get_rank() == 0:
            weights[1] = 0.0  # its place stays
        private.backward(inputs, targets, weights=weights)
        optimizer.step()
        optimizer.close()
        params = [param for param in model.parameters() if param.requires_grad]
        sums.append(summed(whole(param.grad for param in params), noise(model)))
    return sums


def summed(released, noise):
    """The sum of clipped gradients in what was released."""
    rows = [BATCH * one.double() - row for one, row in zip(released, noise, strict=True)]
    return torch.cat([one.flatten() for one in rows])


def resumed(rank, folder, optimizer_class):
    path = folder / f"run-{optimizer_class.__name__}-{rank}.pt"
    model, private, optimizer, loader = run(sharded=True, optimizer=optimizer_class)
    train(private, optimizer, loader, 2)
    save_checkpoint(path, private, optimizer, loader)
    train(private, optimizer, loader, N - 2)
    straight = whole(model.parameters())
    optimizer.close()
    model, private, optimizer, loader = run(sharded=True, optimizer=optimizer_class, generator=None)
    load_checkpoint(path, private, optimizer, loader)
    train(private, optimizer, loader, N - 2)
    history = optimizer.run_record().checkpoint_history
    optimizer.close()
    return {"straight": straight, "resumed": whole(model.parameters()), "history": str(history)}


def refusal(call):
    try:
        call()
    except dm.exceptions.DpmechError as error:
        return str(error)
    return "not refused"


def refused():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import distribute_module

    def by_hand():
        model = distribute_module(nn.Linear(3, 2), init_device_mesh("cpu", (WORLD,)))
        data = DataLoader(classification(SIZE), batch_size=4)
        sgd = torch.optim.SGD(model.parameters())
        make_private(model, sgd, data, CAL, CLIP, loss=cross_entropy, expected_batch_size=BATCH)

    def late():
        model, private, _, loader = run(sharded=False, generator=None)
        fully_shard(model)
        private.backward(*next(iter(loader)))

    def writing():
        _, private, _, loader = run("loop", sharded=True, model=Writing, generator=None)
        private.backward(*next(iter(loader)))

    def parts():
        model, _, optimizer, loader = run(sharded=True, generator=None)
        next(iter(loader))
        trained = [param for param in model.parameters() if param.requires_grad]
        sums = [param.detach() * 0.0 for param in trained]
        optimizer.accumulate(ClippedSum(trained, sums, optimizer.clipping, examples=BATCH // WORLD))

    def interrupted():
        model, private, _, loader = run(sharded=True, generator=None)
        held = list(model.parameters())
        batch = next(iter(loader))
        with private.whole.gathered():
            whole = model.first.weight
        model.first._parameters["weight"] = whole  # as an interrupt of the end of the context leaves it
        private.backward(*batch)
        return [one is other for one, other in zip(model.parameters(), held, strict=True)]

    assert all(interrupted())
    offloaded = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    half = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
    return {
        "hooks": refusal(lambda: run("auto", sharded=True, loss=None, generator=None)),
        "by hand": refusal(by_hand),
        "late": refusal(late),
        "offloaded": refusal(lambda: run(sharded=True, policy=offloaded, generator=None)),
        "half": refusal(lambda: run(sharded=True, policy=half, generator=None)),
        "writing": refusal(writing),
        "parts": refusal(parts),
    }


def find(rank, folder):
    found = {
        f"{mode} {kind} {sharded}": trained(mode, kind, sharded=sharded)
        for mode, kind in [*((mode, "flat") for mode in MODES), ("ghost", "adaptive"), ("ghost", "per layer")]
        for sharded in (True, False)
    }
    found["one example"] = one_example()
    found["neighbours"] = {mode: neighbours(mode) for mode in MODES}
    found["resumed"] = {
        one.__name__: resumed(rank, folder, one) for one in (torch.optim.SGD, torch.optim.AdamW)
    }
    found["refused"] = refused()
    return found


# ---- what both of them found


@pytest.fixture(scope="module")
def ranks():
    return found_by_both(__file__)


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def by_hand(kind, indices=range(0, SIZE, SIZE // BATCH)):
    """The clipped sum of the first batch, by one process and one backward pass an example, in float64."""
    model = Model().double()
    params = [param for param in model.parameters() if param.requires_grad]
    total = [torch.zeros_like(param) for param in params]
    for x, target in [classification(SIZE)[index] for index in indices]:
        grads = torch.autograd.grad(cross_entropy(model, x[None].double(), target[None]), params)
        if kind == "per layer":
            share = CLIP / len(params) ** 0.5
            factors = [min(1.0, share / float(grad.norm())) for grad in grads]
        else:
            norm = float(torch.cat([grad.flatten() for grad in grads]).norm())
            factors = [min(1.0, CLIP / norm)] * len(grads)
        for place, (grad, factor) in enumerate(zip(grads, factors, strict=True)):
            total[place] += factor * grad
    return torch.cat([one.flatten() for one in total])


@pytest.mark.parametrize(
    ("mode", "kind"), [*((mode, "flat") for mode in MODES), ("ghost", "adaptive"), ("ghost", "per layer")]
)
def test_the_sum_is_that_of_one_process_and_each_shard_has_its_own_noise(ranks, mode, kind):
    first, second = (rank[f"{mode} {kind} True"] for rank in ranks)
    whole = ranks[0][f"{mode} {kind} False"]
    assert equal(first["weights"], second["weights"])
    assert first["record"] == second["record"]
    assert first["norm"] == second["norm"]
    if kind == "adaptive":
        assert first["norm"] != CLIP
        return
    sums = [summed(one["released"], one["noise"]) for one in (first, whole)]
    torch.testing.assert_close(*sums, rtol=0.0, atol=3e-6)
    torch.testing.assert_close(sums[0], by_hand(kind), rtol=0.0, atol=1e-4 * float(sums[0].norm()))
    drawn = torch.cat([one.flatten() for one in first["noise"]])
    assert drawn.unique().numel() == drawn.numel()
    # The first shard of a parameter has the noise of its rows in one process.
    for mine, other in zip(first["noise"], whole["noise"], strict=True):
        rows = -(-len(mine) // WORLD)
        assert torch.equal(mine[:rows], other[:rows])


def test_a_process_without_examples_takes_part(ranks):
    for rank in ranks:
        found = rank["one example"]
        expected = by_hand("flat", [found["index"]])
        torch.testing.assert_close(found["sum"], expected, rtol=0.0, atol=1e-4 * float(expected.norm()))


@pytest.mark.parametrize("mode", MODES)
def test_an_absent_example_moves_the_sum_by_at_most_the_clip_norm(ranks, mode):
    for rank in ranks:
        one, other = rank["neighbours"][mode]
        off = float((one - other).norm())
        assert 0.9 * CLIP < off <= CLIP * (1.0 + 1e-4)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_it_resumes_bit_for_bit(ranks, name):
    start = list(Model().parameters())
    for rank in ranks:
        found = rank["resumed"][name]
        assert equal(found["straight"], found["resumed"])
        assert not equal(found["straight"], start)
        assert "loads=1" in found["history"]


def test_evaluations_are_those_of_the_whole_model(ranks):
    for rank in ranks:
        model = Model()
        found = rank["per_example flat True"]
        with torch.no_grad():
            for param, value in zip(model.parameters(), found["weights"], strict=True):
                param.copy_(value)
        torch.testing.assert_close(model(torch.ones(2, 3)), found["evaluated"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hooks", r"no process sees the whole gradient of an example.*loss=\.\.\."),
        ("by hand", "otherwise than by fully_shard"),
        ("late", "sharded over processes since make_private.*before the optimizer"),
        ("offloaded", "CPUOffloadPolicy"),
        ("half", "MixedPrecisionPolicy.*autocast"),
        ("writing", "writes into its parameters|changed other than by a step"),
        ("parts", "whole tensors: make_private gathers"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(ranks, name, text):
    for rank in ranks:
        assert re.search(text, rank["refused"][name]), rank["refused"][name]


if __name__ == "__main__":
    as_process(find)
