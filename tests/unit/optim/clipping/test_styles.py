import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.optim import ClippedSum, FlatClipping, PerLayerClipping, PerMatrixClipping, clipped_gradients
from dpmech.optim.clipping.clipped_sum import clip_and_sum

SLACK = 1e-4


def by_hand(samples, clipping):
    """The sum of clipped gradients, one example at a time in float64."""
    blocks = clipping.blocks(samples)
    arrays = [sample.double().numpy() for sample in samples]
    total = [np.zeros(array.shape[1:]) for array in arrays]
    for example in range(len(arrays[0])):
        for block, clip_norm in enumerate(blocks.clip_norms):
            mine = [i for i, member in enumerate(blocks.members) if member == block]
            norm = math.sqrt(math.fsum(float((arrays[i][example] ** 2).sum()) for i in mine))
            for i in mine:
                total[i] += arrays[i][example] * min(1.0, clip_norm / norm)
    return total


def random_samples(seed, examples=9, spread=3.0, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(size=examples) * spread)
    shapes = [(4, 3), (5,), (), (40, 60)]
    return [
        torch.tensor(rng.normal(size=(examples, *shape)) * sizes.reshape(-1, *[1] * len(shape)), dtype=dtype)
        for shape in shapes
    ]


CLIPPINGS = [
    FlatClipping(0.7),
    PerLayerClipping([0.5, 0.1, 0.3, 2.0]),
    PerLayerClipping([0.5, 0.1], [0, 1, 1, 0]),
    PerMatrixClipping(dm.ledgers.BlockClipping([0.5, 0.1, 0.3, 2.0], 4.0)),
    PerMatrixClipping(dm.ledgers.BlockClipping([0.5, 0.1], [4.0, 2.0]), [0, 1, 1, 0]),
]


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_equals_that_of_clipped_examples(clipping, dtype):
    samples = random_samples(1, dtype=dtype)
    before = [sample.clone() for sample in samples]
    sums, examples, dropped, *_ = clip_and_sum(samples, clipping.blocks([None] * 4))
    assert (examples, dropped) == (9, 0)
    for found, expected, sample, kept in zip(sums, by_hand(samples, clipping), samples, before, strict=True):
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), expected, rtol=SLACK, atol=SLACK * np.abs(expected).max())
        assert torch.equal(sample, kept)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    st.floats(1e-6, 1e3),
    st.integers(1, 5000),
)
def test_one_example_never_adds_more_than_its_clip_norm(seed, dtype, clip_norm, size):
    rng = np.random.default_rng(seed)
    scale = clip_norm * np.exp(rng.normal() * 3.0)
    sample = torch.tensor(rng.normal(size=(1, size)) * scale / math.sqrt(size)).to(dtype)
    (total,), _, dropped, *_ = clip_and_sum([sample], FlatClipping(clip_norm).blocks([None]))
    norm = math.sqrt(math.fsum(total.double().square().tolist()))
    assert norm <= clip_norm
    own = math.sqrt(math.fsum(sample.double().square().ravel().tolist()))
    if dropped == 0:
        assert norm >= min(own, clip_norm) * (1 - SLACK) * (1 - 2**-9 * (own <= clip_norm))


@pytest.mark.parametrize("value", [0.1, 1e-19, 3e-3])
def test_norms_of_long_gradients_are_not_lost_in_float32(value):
    """Sequential float32 sums of 2^24 equal squares stop growing midway."""
    sample = torch.full((1, 2**24), value)
    clip_norm = value * 2**11  # the norm is value x 2^12
    (total,), *_ = clip_and_sum([sample], FlatClipping(clip_norm).blocks([None]))
    norm = float(total.double().square().sum().sqrt())
    if value == 1e-19:  # squares below the smallest float32 are still counted, not underestimated
        assert norm <= clip_norm
    else:
        assert clip_norm * (1 - SLACK) <= norm <= clip_norm


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("where", [0, 3])
def test_an_example_that_is_not_finite_is_dropped_from_every_block(bad, where):
    samples = random_samples(2)
    good = [torch.cat([sample[:4], sample[5:]]) for sample in samples]
    samples[where].reshape(9, -1)[4, -1] = bad
    for clipping in CLIPPINGS:
        sums, examples, dropped, *_ = clip_and_sum(samples, clipping.blocks([None] * 4))
        assert (examples, dropped) == (9, 1)
        expected, *_ = clip_and_sum(good, clipping.blocks([None] * 4))
        assert all(torch.equal(a, b) for a, b in zip(sums, expected, strict=True))


def test_all_examples_dropped_and_none_there():
    sums, examples, dropped, *_ = clip_and_sum(
        [torch.full((3, 2), math.nan)], FlatClipping(1.0).blocks([None])
    )
    assert (sums[0].tolist(), examples, dropped) == ([0.0, 0.0], 3, 3)
    sums, examples, dropped, *_ = clip_and_sum([torch.zeros(0, 2)], FlatClipping(1.0).blocks([None]))
    assert (sums[0].tolist(), examples, dropped) == ([0.0, 0.0], 0, 0)
    assert clip_and_sum([None, None], FlatClipping(1.0).blocks([None] * 2)) == ([None, None], 0, 0, 0, 0)


def test_parameters_without_gradients_add_nothing():
    samples = random_samples(3)
    with_zeros = [samples[0], torch.zeros_like(samples[1]), *samples[2:]]
    without = [samples[0], None, *samples[2:]]
    found, *_ = clip_and_sum(without, FlatClipping(1.0).blocks([None] * 4))
    expected, *_ = clip_and_sum(with_zeros, FlatClipping(1.0).blocks([None] * 4))
    assert found[1] is None
    for i in (0, 2, 3):
        np.testing.assert_allclose(found[i].numpy(), expected[i].numpy(), rtol=1e-6)


def test_scale_undoes_a_loss_scale():
    samples = random_samples(4, dtype=torch.float64)
    scaled = [sample * 1024.0 for sample in samples]
    for clipping in CLIPPINGS:
        found, *_ = clip_and_sum(scaled, clipping.blocks([None] * 4), scale=1.0 / 1024.0)
        expected, *_ = clip_and_sum(samples, clipping.blocks([None] * 4))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        ([torch.zeros(3, 2), torch.zeros(4, 2)], "equal numbers of examples"),
        ([torch.tensor(1.0), torch.zeros(4, 2)], "examples first"),
        ([torch.zeros(3, 2, dtype=torch.int64), None], "real, examples first"),
    ],
)
def test_samples_that_do_not_fit(samples, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        clip_and_sum(samples, FlatClipping(1.0).blocks([None] * 2))


# ---- norms and noise of a clipping


def test_joint_norms_and_noise():
    assert FlatClipping(2).joint_norm == 2.0
    assert FlatClipping(2.0).noise_norms([None] * 3, 5.0) == (2.0, 2.0, 2.0)
    layered = PerLayerClipping([3.0, 4.0], (0, 1, 1))
    assert layered.joint_norm == 5.0
    assert layered.noise_norms([None] * 3, 7.0) == (5.0, 5.0, 5.0)
    assert layered == PerLayerClipping((3, 4), [0, 1, 1])
    assert layered.blocks([None] * 3).members == (0, 1, 1)


def test_per_matrix_noise_is_in_proportion_and_reaches_the_joint_sigma():
    sigma = 1.25
    blocks = dm.ledgers.BlockClipping.from_joint([0.5, 2.0, 1.0], sigma, dimensions=[10, 1000, 50])
    clipping = PerMatrixClipping(blocks, [2, 0, 1, 1])
    assert clipping.joint_norm == pytest.approx(math.hypot(0.5, 2.0, 1.0))
    noise = clipping.noise_norms([None] * 4, sigma)
    stddevs = [norm * sigma for norm in noise]
    assert stddevs == pytest.approx([blocks.noise_stddevs[i] for i in (2, 0, 1, 1)], rel=1e-14)
    # The influence of one example, in units of the noise: at most 1 / sigma over all blocks together.
    moved = math.sqrt(sum((c / s) ** 2 for c, s in zip(blocks.clip_norms, blocks.noise_stddevs, strict=True)))
    assert moved <= 1.0 / sigma
    assert moved == pytest.approx(1.0 / sigma, rel=1e-12)
    with pytest.raises(dm.InvalidParameterError, match="joint sigma >="):
        clipping.noise_norms([None] * 4, 1.2500001)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: FlatClipping(0.0), "clip_norm"),
        (lambda: FlatClipping("1"), "clip_norm"),
        (lambda: PerLayerClipping([]), "clip_norms"),
        (lambda: PerLayerClipping([1.0, 0.0]), "numbers > 0"),
        (lambda: PerLayerClipping([1.0, 1.0], [0, 0]), "every number from 0 to 1"),
        (lambda: PerLayerClipping([1.0, 1.0], [0, 2]), r"layers\[1\]"),
        (lambda: PerLayerClipping([1.0, 1.0]).blocks([None] * 3), "for all 3 parameters"),
        (lambda: PerLayerClipping([1.0], [0, 0]).blocks([None] * 3), "for all 3 parameters"),
        (lambda: PerMatrixClipping([1.0, 2.0]), "a dm.ledgers.BlockClipping"),
        (
            lambda: PerMatrixClipping(dm.ledgers.BlockClipping([1.0], 1.0)).blocks([None] * 2),
            "for all 2 parameters",
        ),
    ],
)
def test_bad_clippings(build, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        build()


# ---- clipped sums


PARAMS = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([torch.zeros(2)], 1.0), dm.InvalidParameterError, "clipping must be a Clipping"),
        (([torch.zeros(2)], FlatClipping(1.0)), dm.InvalidParameterError, "2, one per parameter"),
        (([torch.zeros(2), torch.zeros(2)], FlatClipping(1.0)), dm.InvalidParameterError, r"of shape \(3,\)"),
        (([None, "x"], FlatClipping(1.0)), dm.InvalidParameterError, r"of shape \(3,\)"),
        (([None, torch.tensor([0.0, math.nan, 0.0])], FlatClipping(1.0)), dm.NumericalError, "not finite"),
        (
            ([None, torch.ones(3)], FlatClipping(1.0), False, 1),
            dm.NumericalError,
            "more than possible for 1 examples",
        ),
        (([None, torch.ones(3)], FlatClipping(1.0), False, -1), dm.InvalidParameterError, "examples"),
    ],
)
def test_sums_are_checked(arguments, error, match):
    with pytest.raises(error, match=match):
        ClippedSum(PARAMS, *arguments)


def test_sums_of_gradients():
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    params[0].grad = torch.tensor([0.6, 0.8])
    total = ClippedSum.from_grads(params, FlatClipping(0.5), scale=4.0, examples=8)
    assert total.sums[0].tolist() == pytest.approx([2.4, 3.2])
    assert total.sums[1] is None
    assert params[0].grad is None
    with pytest.raises(dm.InvalidParameterError, match="scale"):
        ClippedSum.from_grads(params, FlatClipping(0.5), scale=0.0)


# ---- torch.func


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 5)
        self.frozen = torch.nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.last = torch.nn.Linear(5, 3)
        self.register_buffer("shift", torch.tensor(0.5))

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(x)))) + self.shift)


def cross_entropy(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def example_gradients(model, batch):
    """Per-example gradients by one backward pass per example."""
    trained = [param for param in model.parameters() if param.requires_grad]
    rows = [torch.autograd.grad(cross_entropy(model, x, y), trained) for x, y in zip(*batch, strict=True)]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def problem(examples=10):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(examples, 4, generator=rng) * 3.0, torch.randint(3, (examples,), generator=rng)


@pytest.mark.parametrize(
    ("size", "mode"),
    [*((size, "per_example") for size in (None, 1, 3, 10, 99)), (None, "loop"), (3, "loop")],
)
@pytest.mark.parametrize("clipping", [0.3, PerLayerClipping([0.3, 0.2], [0, 0, 1, 1])])
def test_gradients_are_those_of_single_examples(size, mode, clipping):
    torch.manual_seed(0)
    model, batch = Net(), problem()
    total = clipped_gradients(model, cross_entropy, batch, clipping, microbatch_size=size, clipping_mode=mode)
    assert [id(param) for param in total.parameters] == [id(p) for p in model.parameters() if p.requires_grad]
    assert (total.examples, total.dropped, total.reduced) == (10, 0, False)
    expected = by_hand(
        example_gradients(model, batch), total.clipping if isinstance(clipping, float) else clipping
    )
    for found, array in zip(total.sums, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), array, rtol=2e-4, atol=1e-5)
    assert all(param.grad is None for param in model.parameters())


def test_an_empty_batch_has_an_empty_sum():
    total = clipped_gradients(Net(), cross_entropy, problem(0), 1.0, microbatch_size=4)
    assert (set(total.sums), total.examples) == ({None}, 0)


def test_an_example_with_a_nan_is_counted():
    model, (x, y) = Net(), problem()
    x[2] = math.nan
    total = clipped_gradients(model, cross_entropy, (x, y), 1.0, microbatch_size=4)
    keep = [i for i in range(10) if i != 2]
    expected = clipped_gradients(model, cross_entropy, (x[keep], y[keep]), 1.0)
    assert (total.examples, total.dropped) == (10, 1)
    for a, b in zip(total.sums, expected.sums, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_tied_weights_are_one_parameter():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    total = clipped_gradients(model, lambda f, one: f(one).square().sum(), x, 1e9)
    model(x).square().sum().backward()
    assert len(total.sums) == 1
    np.testing.assert_allclose(total.sums[0].numpy(), model[0].weight.grad.numpy(), rtol=1e-4)


def test_dropout_differs_between_examples():
    model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Dropout(0.5))
    total = clipped_gradients(model, lambda f, x: f(x).sum(), torch.ones(32, 1), 1e9)
    assert 5 < len(set(total.sums[0].flatten().tolist())) <= 33


@pytest.mark.parametrize(
    ("model", "batch", "options", "match"),
    [
        (lambda x: x, (torch.zeros(2, 4),), {}, "a torch.nn.Module"),
        (torch.nn.Tanh(), (torch.zeros(2, 4),), {}, "require gradients"),
        (Net(), (), {}, "at least one"),
        (Net(), (torch.zeros(2, 4), torch.zeros(3)), {}, "same number of examples"),
        (Net(), (torch.zeros(2, 4), 3), {}, "same number of examples"),
        (Net(), (torch.tensor(1.0),), {}, "same number of examples"),
        (Net(), (torch.zeros(2, 4),), {"microbatch_size": 0}, "microbatch_size"),
        (Net(), (torch.zeros(2, 4),), {"clipping": -1.0}, "clip_norm"),
    ],
)
def test_bad_problems(model, batch, options, match):
    options = {"clipping": 1.0} | copy.copy(options)
    with pytest.raises(dm.InvalidParameterError, match=match):
        clipped_gradients(model, cross_entropy, batch, **options)


class Tied(torch.nn.Module):
    """A layer under two names, and two layers with one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(3, 3)
        self.again = self.first
        self.last = torch.nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.again(torch.tanh(self.first(x))))


def test_shared_layers_stay_in_the_model_with_full_gradients():
    """Without our handling, functional_call leaves a stale tensor in place of a shared layer's weight."""
    model = Tied()
    params = list(model.parameters())
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    found = clipped_gradients(model, lambda f, one: f(one).square().sum(), x, 1e9)
    assert [id(param) for param in model.parameters()] == [id(param) for param in params]
    expected = torch.autograd.grad(model(x).square().sum(), params)
    for value, grad in zip(found.sums, expected, strict=True):
        np.testing.assert_allclose(value.numpy(), grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip_norm", [1e-5, 1e-6])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_factors_below_the_normal_numbers_do_not_round_up(clip_norm, scale):
    # clip_norm / norm is a subnormal float32 here, with neighbours several percent away.
    blocks = FlatClipping(clip_norm).blocks([None])
    for value in np.linspace(0.5e38, 1.1e38, 41):
        sums, _, dropped, *_ = clip_and_sum(
            [torch.tensor([[value]], dtype=torch.float32)], blocks, scale=scale
        )
        assert dropped == 0
        assert abs(float(sums[0])) <= clip_norm


def test_a_sum_of_no_examples_is_zero():
    weights = torch.nn.Parameter(torch.zeros(3))
    ClippedSum([weights], [torch.zeros(3)], FlatClipping(1.0), examples=0)
    with pytest.raises(dm.NumericalError, match="more than possible for 0 examples"):
        ClippedSum([weights], [torch.full((3,), 1e-3)], FlatClipping(1.0), examples=0)


def test_a_joint_norm_is_split():
    params = [torch.nn.Parameter(torch.zeros(size)) for size in (1, 3, 12)]
    params.insert(1, torch.nn.Parameter(torch.zeros(5), requires_grad=False))
    even = PerLayerClipping.split(2.0, params)
    assert even.clip_norms == pytest.approx([2.0 / math.sqrt(3)] * 3)
    by_size = PerLayerClipping.split(2.0, params, by="dimension")
    assert by_size.clip_norms == pytest.approx([0.5, math.sqrt(0.75), math.sqrt(3.0)])
    assert even.joint_norm == pytest.approx(2.0)
    assert by_size.joint_norm == pytest.approx(2.0)
    assert PerLayerClipping.split(2.0, params[:1], by="dimension").clip_norms == (2.0,)
    for bad, name in (
        ({"clip_norm": 0.0, "parameters": params}, "clip_norm"),
        ({"clip_norm": 1.0, "parameters": params[1:2]}, "parameters"),
        ({"clip_norm": 1.0, "parameters": params, "by": "size"}, "by"),
    ):
        with pytest.raises(dm.InvalidParameterError, match=name):
            PerLayerClipping.split(**bad)
