"""A clip norm that follows a noised count: each step's clipping, joint noise, saving, records."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import dpmech as dm
from dpmech.checker import Kind
from dpmech.optim import (
    AdaptiveClip,
    ClippedSum,
    FlatClipping,
    NoiseMode,
    NoiseStream,
    PerLayerClipping,
    PrivateOptimizer,
    clipped_gradients,
    load_checkpoint,
    save_checkpoint,
)
from tests.support import saved
from tests.support.training import (
    classification,
    classifier,
    cross_entropy,
    private_run,
    train,
)

N, SIZE = 12, 20
RULE = AdaptiveClip(0.8, quantile=0.6, rate=0.5, count_share=0.2)
STRATEGIES = {
    "identity": (dm.Identity(N), None),
    "regenerated": (dm.LambdaCGD(N, 0.5), None),
    "kept": (dm.LambdaCGD(N, 0.5), NoiseMode.BUFFER),
    "substitution": (dm.SquareRoot(N, 3), None),
    "exponentials": (dm.BLT(N, [0.9, 0.5], [0.2, 0.1]), None),
}


def calibration(strategy=None, participation=None):
    strategy = dm.LambdaCGD(N, 0.5) if strategy is None else strategy
    return dm.calibrate_sigma(
        strategy, 8.0, 1e-5, participation=dm.MinSep(4) if participation is None else participation
    )


CAL = calibration()


def gradients(step, examples=9, values=5):
    """Gradients of one parameter, of very different norms."""
    rng = np.random.default_rng(step)
    return rng.standard_normal((examples, values)) * rng.lognormal(sigma=1.5, size=(examples, 1))


def by_hand(cal=CAL, rule=RULE, *, mode=None, values=5, **options):
    """A PrivateOptimizer of one parameter that does not move."""
    param = nn.Parameter(torch.zeros(values, dtype=torch.float64))
    sgd = torch.optim.SGD([param], lr=0.0)
    return param, PrivateOptimizer(
        sgd, cal, rule, expected_batch_size=10.0, generator=3, mode=mode, **options
    )


# ---- the released sums


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_step_uses_its_norm_and_the_noised_count_gives_the_next(name):
    strategy, mode = STRATEGIES[name]
    cal = calibration(strategy)
    param, optimizer = by_hand(cal, mode=mode)
    found, norms = [], []
    for step in range(N):
        norms.append(optimizer.clip_norm)
        param.grad_sample = torch.tensor(gradients(step))
        optimizer.step()
        found.append(param.grad.numpy() * 10.0)
        variance = (
            RULE.gradient_sigma(cal.sigma) * norms[-1] / 10.0 * strategy.noising_row_norms()[step]
        ) ** 2
        assert optimizer.phi == pytest.approx(variance, rel=1e-9)
    optimizer.close()
    # The same key in a separate stream: the noise in the units of a norm of 1.
    stream = NoiseStream(
        cal,
        [torch.zeros(5, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)],
        1.0,
        generator=3,
        mode=mode,
    )
    norm = RULE.initial
    for step in range(N):
        assert norms[step] == pytest.approx(norm, rel=1e-9)
        own = gradients(step)
        lengths = np.linalg.norm(own, axis=1)
        clipped = (own * np.minimum(1.0, norm / lengths)[:, None]).sum(axis=0)
        gradient_noise, count_noise = (row.numpy() / cal.sigma for row in stream.step())
        expected = clipped + RULE.gradient_sigma(cal.sigma) * norm * gradient_noise
        np.testing.assert_allclose(found[step], expected, rtol=1e-4, atol=1e-4 * norm)
        count = (lengths <= norm).sum() - 4.5 + RULE.count_stddev(cal.sigma) * count_noise[0]
        norm *= math.exp(-0.5 * (0.5 + count / 10.0 - 0.6))


def test_the_count_is_released_with_separate_noise():
    """Without examples only noise changes the norm, of the size given by the rule."""
    cal = calibration(dm.Identity(600), dm.MinSep(600))
    param, optimizer = by_hand(cal, values=3000)
    norms, gradient_noise = [], []
    while optimizer.steps_left:
        norms.append(optimizer.clip_norm)
        optimizer.step()
        gradient_noise.append(float(param.grad.std()) * 10.0 / norms[-1])
    shares = 0.6 - np.diff(np.log(norms)) / 0.5
    counts = (shares - 0.5) * 10.0
    assert counts.std() == pytest.approx(RULE.count_stddev(cal.sigma), rel=0.12)  # 4 standard errors
    assert abs(counts.mean()) < 5.0 * counts.std() / math.sqrt(counts.size)
    assert np.mean(gradient_noise) == pytest.approx(RULE.gradient_sigma(cal.sigma), rel=0.005)
    assert np.unique(norms).size == len(norms)


@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_the_norm_converges_to_the_quantile(quantile):
    steps, batch = 300, 200
    cal = calibration(dm.Identity(steps), dm.MinSep(steps))
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    rule = AdaptiveClip(30.0, quantile=quantile, rate=0.2)
    optimizer = PrivateOptimizer(
        torch.optim.SGD([param], lr=0.0), cal, rule, expected_batch_size=batch, generator=1
    )
    rng = np.random.default_rng(0)
    norms = []
    for _ in range(steps):
        param.grad_sample = torch.tensor(rng.lognormal(sigma=0.5, size=(batch, 1)))
        optimizer.step()
        norms.append(optimizer.clip_norm)
    true = math.exp(0.5 * {0.5: 0.0, 0.8: 0.8416212335729143}[quantile])
    assert math.exp(np.log(norms[-150:]).mean()) == pytest.approx(true, rel=0.05)


def test_a_non_finite_example_counts_in_neither_sum():
    found = []
    for bad in (False, True):
        param, optimizer = by_hand()
        own = torch.tensor(gradients(0))
        param.grad_sample = (
            torch.cat([own, torch.full((1, 5), math.nan, dtype=torch.float64)]) if bad else own
        )
        if bad:
            with pytest.warns(UserWarning, match="not finite"):
                optimizer.step()
        else:
            optimizer.step()
        found.append((param.grad.tolist(), optimizer.clip_norm))
        optimizer.close()
    assert found[0] == found[1]


# ---- the influence of one example


def count_of(optimizer):
    """The count of the batch so far, without noise."""
    return float(optimizer.state_dict()["dpmech"]["batch"]["sums"][-1])


def added(model, optimizer, rows, way):
    """The sums of gradients and the count after a batch of these inputs, for one gradient mode."""
    if way == "samples":
        for param, sample in zip(
            model.parameters(), (rows[:, None, :], torch.ones(len(rows), 1)), strict=True
        ):
            param.grad_sample = sample * (rows.abs().sum(dim=1) > 0).reshape(-1, *[1] * (sample.ndim - 1))
        optimizer.accumulate()
    else:
        loss = lambda model, x: model(x).sum() * (x != 0).any()  # noqa: E731 - a loss that is zero for zeros
        optimizer.accumulate(clipped_gradients(model, loss, rows, optimizer.clipping, clipping_mode=way))
    sums = [one for one in optimizer.state_dict()["dpmech"]["batch"]["sums"] if one is not None]
    optimizer._batch.clear()
    return torch.cat([one.flatten() for one in sums[:-1]] or [torch.zeros(0)]), float(
        sums[-1]
    ) if sums else 0.0


@pytest.mark.parametrize("way", ["samples", "per_example", "ghost"])
@pytest.mark.parametrize("adjacency", list(dm.Adjacency))
def test_one_example_moves_both_sums_together_by_no_more_than_certified(way, adjacency):
    """All pairs of batches that differ in one example, the worst of which is as certified."""
    cal = dm.calibrate_sigma(dm.Identity(1), 2.0, 1e-5, adjacency=adjacency)
    sigma, rule = cal.sigma / cal.sensitivity.upper, AdaptiveClip(2.0, count_share=0.3)
    model = nn.Linear(60, 1)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), cal, rule, expected_batch_size=4, generator=1
    )
    others = torch.randn(3, 60, generator=torch.Generator().manual_seed(0))
    zero, one = torch.zeros(1, 60), torch.zeros(1, 60)
    one[0, 0] = 1.0
    # The bias has gradient 1: norms 1.05, 2 (a tie, up to rounding), 2.01, and much more, with both signs.
    scales = (0.33, math.sqrt(3.0) - 1e-3, math.sqrt(3.0) + 1e-2, 1e4)
    examples = [sign * scale * one for scale in scales for sign in (1.0, -1.0)] + [zero]
    absent = [torch.zeros(0, 60)]
    neighbours = {
        dm.Adjacency.ADD_REMOVE: absent,
        dm.Adjacency.ZERO_OUT: [zero],
        dm.Adjacency.REPLACE_ONE: examples,
    }[adjacency]

    def sums(example, order):
        return added(model, optimizer, torch.cat((example, others)[::order]), way)

    worst = 0.0
    for order in (1, -1):
        here, there = ([sums(one, order) for one in each] for each in (examples, neighbours))
        for (gradient, count), (other, other_count) in itertools.product(here, there):
            moved = (gradient.double() - other.double()).norm() / (rule.gradient_sigma(cal.sigma) * 2.0)
            worst = max(worst, math.hypot(moved, (count - other_count) / rule.count_stddev(cal.sigma)))
    optimizer.close()
    assert worst <= 1.0 / sigma * (1.0 + 1e-9)
    assert worst >= 0.95 / sigma  # the certified noise is needed: a planted violation of 5 % is detected


@pytest.mark.parametrize("loss", [None, cross_entropy], ids=["samples", "loss"])
def test_rows_of_padding_with_weight_zero_add_nothing(loss):
    found = []
    for padding in (0, 3):
        model = classifier(widths=(3, 64, 2))
        optimizer = PrivateOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), CAL, RULE, expected_batch_size=10, generator=1
        )
        if loss is None:
            for param in model.parameters():
                sample = torch.randn(4, *param.shape, generator=torch.Generator().manual_seed(0))
                param.grad_sample = torch.cat([sample, torch.zeros(padding, *param.shape)])
            optimizer.accumulate()
        else:
            rows = torch.randn(4 + padding, 3, generator=torch.Generator().manual_seed(0))
            rows[:4] = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
            weights = (torch.arange(len(rows)) < 4).float()
            weighed = lambda model, x, weight: weight * loss(model, x, torch.tensor(0))  # noqa: E731
            for mode in ("per_example", "ghost"):
                optimizer.accumulate(
                    clipped_gradients(model, weighed, (rows, weights), optimizer.clipping, clipping_mode=mode)
                )
        found.append(count_of(optimizer))
        assert abs(found[-1]) in ({1.0, 2.0} if loss is None else {2.0, 4.0})
        optimizer.close()
    assert found[0] == found[1]


# ---- runs


@pytest.mark.parametrize(
    "options", [{"clipping_mode": "ghost"}, {"max_physical_batch_size": 2}, {"loss": None}]
)
def test_all_ways_to_gradients_follow_the_same_norms(options):
    reference = None
    for one in ({}, options):
        model, optimizer, loader = private_run(
            CAL,
            classifier(widths=(3, 64, 2)),
            classification(SIZE),
            clip_norm=RULE,
            generator=1,
            **({"loss": cross_entropy} | one),
        )
        norms = []
        train(model, optimizer, loader, after_step=lambda _, to=norms, of=optimizer: to.append(of.clip_norm))
        reference = reference or norms
        optimizer.close()
        np.testing.assert_allclose(norms, reference, rtol=1e-9)
    assert len(set(norms)) == len(norms)


@pytest.mark.parametrize("loss", [cross_entropy, None], ids=["loss", "hooks"])
def test_a_resumed_run_continues_bit_for_bit(tmp_path, loss):
    def start():
        parts = private_run(
            CAL, classifier(), classification(SIZE), clip_norm=RULE, loss=loss, generator=1, lr=0.5
        )
        return parts

    model, optimizer, loader = start()
    path = tmp_path / "run.pt"
    expected = []

    def note(step):
        expected.append(optimizer.clip_norm)
        if step == 5:
            save_checkpoint(path, model, optimizer, loader)

    last = train(model, optimizer, loader, after_step=note)
    optimizer.close()
    model, optimizer, loader = start()
    load_checkpoint(path, model, optimizer, loader)
    assert optimizer.clip_norm == expected[4]
    again, phi = [], optimizer.phi
    assert phi != CAL.noise_variance(4, RULE.initial, 5)
    same = train(model, optimizer, loader, after_step=lambda _: again.append(optimizer.clip_norm))
    assert again == expected[5:]
    assert torch.equal(same, last)


def test_a_state_within_a_batch_contains_its_count():
    def half(optimizer, param, part):
        param.grad_sample = torch.tensor(gradients(0))[part]
        optimizer.accumulate()

    found = []
    for stopped in (False, True):
        param, optimizer = by_hand()
        half(optimizer, param, slice(4))
        if stopped:
            state = optimizer.state_dict()
            optimizer.close()
            param, optimizer = by_hand()
            optimizer.load_state_dict(state)
        half(optimizer, param, slice(4, None))
        optimizer.step()
        found.append((optimizer.clip_norm, param.grad.tolist()))
        optimizer.close()
    assert found[0] == found[1]


def test_states_of_another_clipping_are_refused_by_name():
    for rule, other in ((RULE, 0.8), (0.8, RULE), (RULE, AdaptiveClip(0.8))):
        _, optimizer = by_hand(rule=rule)
        state = optimizer.state_dict()
        optimizer.close()
        _, optimizer = by_hand(rule=other)
        with pytest.raises(dm.exceptions.CertificateError, match="another clipping"):
            optimizer.load_state_dict(state)
        optimizer.close()
    _, optimizer = by_hand()
    state = optimizer.state_dict()
    del state["dpmech"]["clip_norms"]
    optimizer.close()
    _, optimizer = by_hand()
    with pytest.raises(dm.InvalidParameterError, match="clip_norms of the state"):
        optimizer.load_state_dict(state)


def test_a_partly_loaded_state_takes_no_step():
    param, optimizer = by_hand()
    param.grad_sample = torch.tensor(gradients(0))
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.close()
    state["dpmech"]["clip_norms"] = [0.7]
    _, optimizer = by_hand()
    with pytest.raises(dm.InvalidParameterError, match="clip_norms of the state"):
        optimizer.load_state_dict(state)
    with pytest.raises(dm.UnsupportedCombinationError, match="was closed"):
        optimizer.step()  # row 1 of the state, under another norm


def test_the_stated_rule_is_applied():
    with pytest.raises(TypeError, match="no subclasses"):
        type("Other", (AdaptiveClip,), {"after": lambda self, clip_norm, count, **_: clip_norm})
    with pytest.raises(dm.InvalidParameterError, match="expected_batch_size"):
        CAL.certificate(RULE, RULE)


def test_run_record_and_certificate_state_it_and_are_verified(tmp_path):
    cal = saved.calibration("poisson")
    model, optimizer, loader = private_run(
        cal, classifier(), classification(SIZE), clip_norm=RULE, loss=cross_entropy
    )
    train(model, optimizer, loader)
    record = optimizer.run_record()
    assert record.certificate.clip_norm == RULE == optimizer.record.clip_norm
    record.save(tmp_path / "run.json")
    found = dm.verify(tmp_path / "run.json", rigorous=True)
    assert found.ok
    assert found.claim is Kind.PROVED
    # The certificate's settings need not be repeated, and no others are accepted.
    fixed = record.certificate
    optimizer.close()
    _, again, _ = private_run(fixed, classifier(), classification(SIZE), loss=cross_entropy)
    assert again.clip_norm == RULE.initial
    again.close()
    for other in (1.0, AdaptiveClip(0.8)):
        with pytest.raises(dm.exceptions.CertificateError, match=r"certified as|follows a noised"):
            private_run(fixed, classifier(), classification(SIZE), clip_norm=other, loss=cross_entropy)


# ---- refusals


def test_incompatible_options_are_refused():
    with pytest.raises(dm.InvalidParameterError, match="clipping"):
        by_hand(clipping=PerLayerClipping([1.0]))
    with pytest.raises(dm.exceptions.CertificateError, match="clip_norm is certified"):
        by_hand(CAL.certificate(1.0, 10.0))
    with pytest.raises(dm.exceptions.CertificateError, match="follows a noised count"):
        by_hand(CAL.certificate(RULE, 10.0), None, clipping=PerLayerClipping([1.0]))
    with pytest.raises(dm.exceptions.CertificateError, match="follows a noised count"):
        NoiseStream(CAL.certificate(RULE, 10.0), [torch.zeros(3)], 1.0)


def test_sums_must_state_below_and_use_the_norm_of_the_step():
    param, optimizer = by_hand()
    total = torch.zeros(5, dtype=torch.float64)
    for name, options in (
        ("below", {}),
        ("below", {"examples": 3, "above": 1}),
        ("below", {"below": 2, "above": 1}),
        ("above", {"examples": 3, "below": 2}),
    ):
        with pytest.raises(dm.InvalidParameterError, match=name):
            optimizer.accumulate(ClippedSum([param], [total], optimizer.clipping, **options))
    for name, options in (
        ("below", {"below": 3}),
        ("above", {"below": 1, "above": 2}),
        ("above", {"above": 3}),
    ):
        with pytest.raises(dm.InvalidParameterError, match=name):
            ClippedSum([param], [total], optimizer.clipping, examples=3, dropped=1, **options)
    optimizer.accumulate(ClippedSum([param], [total], optimizer.clipping, examples=3, below=2, above=0))
    assert count_of(optimizer) == 1.0
    optimizer.step()
    with pytest.raises(dm.InvalidParameterError, match="clipping of the sum"):
        optimizer.accumulate(ClippedSum([param], [total], FlatClipping(RULE.initial), examples=0))
    optimizer.accumulate(ClippedSum([param], [None], optimizer.clipping, examples=0))
    optimizer.close()


def test_a_stream_takes_a_norm_at_every_step_or_at_none():
    params = [torch.zeros(3), torch.zeros(1, dtype=torch.float64)]
    stream = NoiseStream(CAL, params, RULE, generator=1)
    with pytest.raises(dm.InvalidParameterError, match="given at every step"):
        stream.step()
    for bad in (0.0, -1.0, math.inf):
        with pytest.raises(dm.InvalidParameterError, match="clip_norm"):
            stream.step(bad)
    assert stream.steps_taken == 0
    stream.close()
    with pytest.raises(dm.InvalidParameterError, match="None, as it was given"):
        NoiseStream(CAL, params, 1.0, generator=1).step(2.0)
