"""Files that cost too much: what is looked at before a claim is built, and the budget of what comes after."""

import dataclasses
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech.cli import main
from dpmech.engines.convex_order import dynamic_program as ring_program
from dpmech.engines.gaussian_mixture import samples as sampling
from dpmech.mechanism import decoder_work, form_work
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.numerics import series
from dpmech.numerics.metering import Work, metered, spend
from dpmech.verifying import claims as limits
from tests.support.forged_files import (
    BASE,
    CONTRADICTORY,
    DECAYS,
    LARGE,
    SCALES,
    TOO_DEAR,
    changed,
    nested,
)


class EnteredError(BaseException):
    """Work that was to be refused has begun; nothing catches it."""


@pytest.fixture
def tripwires(monkeypatch):
    """Whatever forms something of the size of the claim."""

    def fail(*_, **__):
        raise EnteredError

    monkeypatch.setattr(ScaledToeplitz, "__post_init__", fail)
    monkeypatch.setattr(dm.Dense, "to_dense", fail)
    monkeypatch.setattr(dm.Dense, "column_norms", fail)
    monkeypatch.setattr(dm.Dense, "solve", fail)
    monkeypatch.setattr(sampling, "_chunk", fail)
    monkeypatch.setattr(ring_program, "_run_group", fail)


@pytest.mark.parametrize("name", list(TOO_DEAR))
def test_forged_claims_are_refused_before_anything_of_their_size_is_formed(name, tmp_path, tripwires):
    path = tmp_path / "forged.json"
    path.write_text(TOO_DEAR[name]())
    with pytest.raises(dm.exceptions.WorkLimitError, match=r"--max-(seconds|memory)"):
        dm.verify(path)
    result = CliRunner().invoke(main, ["verify", str(path)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--max-" in result.stderr
    # Loading it checks all but the numbers that take this work.
    assert dm.Certificate.load(path).sigma == BASE.sigma


@pytest.mark.parametrize("name", list(CONTRADICTORY))
def test_forged_numbers_are_refused_unbuilt(name, tmp_path, tripwires):
    path = tmp_path / "forged.json"
    path.write_text(CONTRADICTORY[name]())
    found = dm.verify(path)
    assert not found.ok
    assert found.certificate is None
    assert len(str(found)) < 4000


def refused_within(text, path):
    """Verify a file that is none; peak of what Python allocated, in bytes for each byte of the file."""
    path.write_text(text, encoding="utf-8")
    assert path.stat().st_size <= 10_000_000
    tracemalloc.start()
    try:
        found = dm.verify(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not found.ok
    assert found.certificate is None
    assert len(str(found)) < 4000
    return peak / path.stat().st_size


@pytest.mark.parametrize("name", list(LARGE))
def test_large_texts_are_refused_unbuilt_in_memory_in_proportion(name, tmp_path, tripwires):
    """What 10 MB take is below 1 GB then, but for what every file takes."""
    small, large = (refused_within(LARGE[name](share), tmp_path / "forged.json") for share in (0.005, 0.015))
    assert large < 90.0
    assert large < 1.2 * small + 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LARGE))
def test_the_largest_texts_are_refused_within_a_gigabyte(name, tmp_path, tripwires):
    path = tmp_path / "forged.json"
    assert refused_within(LARGE[name](1.0), path) * path.stat().st_size < 1e9


def test_larger_files_are_not_read(tmp_path):
    path = tmp_path / "large.json"
    path.write_text(BASE.to_json() + " " * 10_000_000)
    for load in (dm.verify, dm.Certificate.load):
        with pytest.raises(
            dm.InvalidParameterError, match=r"a file of at most 10000000 bytes .*--max-file-size"
        ):
            load(path)
    assert dm.verify(path, max_file_size=20_000_000).ok
    assert dm.Certificate.load(path, max_file_size=20_000_000) == BASE
    assert CliRunner().invoke(main, ["verify", str(path)]).exit_code == 2
    assert CliRunner().invoke(main, ["verify", str(path), "--max-file-size", "20"]).exit_code == 0


def test_the_budget_can_be_raised_and_lowered(tmp_path):
    path = tmp_path / "certificate.json"
    BASE.save(path)
    with pytest.raises(
        dm.exceptions.WorkLimitError, match=r"and 1e-06 GB; raise max_memory \(--max-memory\)"
    ):
        dm.verify(path, max_memory=1e3)
    result = CliRunner().invoke(main, ["verify", str(path), "--max-memory", "1e-6"])
    assert result.exit_code == 2
    assert "--max-memory" in result.stderr
    assert dm.verify(path, max_seconds=30.0, max_memory=5e8).ok
    for name in ("max_seconds", "max_memory"):
        for value in (0.0, -1.0, float("nan"), "1"):
            with pytest.raises(dm.InvalidParameterError, match=name):
                dm.verify(path, **{name: value})
    with pytest.raises(dm.InvalidParameterError, match="max_file_size"):
        dm.verify(path, max_file_size=0)


@pytest.mark.parametrize(("seconds", "allowed"), [(1.0, 300.0), (1e6, 1e6)])
def test_reading_has_a_budget_that_the_checkers_raises(seconds, allowed, tmp_path, tripwires):
    path = tmp_path / "forged.json"
    path.write_text(TOO_DEAR["1e8 independent steps"]())
    with pytest.raises(dm.exceptions.WorkLimitError) as refusal:
        dm.verify(path, max_seconds=seconds)
    assert refusal.value.allowed == (allowed, 4e9)


def test_objects_have_the_same_budget(tripwires):
    dear = changed(BASE, strategy=dm.BLT(10**7, DECAYS, SCALES))
    with pytest.raises(dm.exceptions.WorkLimitError):
        dm.verify(dear)


def test_a_meter_counts_inside_its_block_only():
    spend(1e9, 1e15, what="anything")
    with metered(2.0, 100.0):
        spend(1.5, 100.0, what="one")
        spend(0.5, what="another")
        with pytest.raises(dm.exceptions.WorkLimitError, match=r"a third takes the work to about 2\.1 s"):
            spend(0.1, what="a third")
        with pytest.raises(dm.exceptions.WorkLimitError, match="max_memory") as refusal:
            spend(0.0, 101.0, what="a fourth")
        assert refusal.value.what == "a fourth"
    with metered(1.0, 1.0), pytest.raises(dm.exceptions.WorkLimitError):
        spend(float("nan"), what="nobody knows")
    # A budget inside another one: both count, and what the inner one refuses is not spent.
    with metered(3.0, 100.0):
        with metered(2.0, 1e9):
            spend(1.0, what="one")
            with pytest.raises(dm.exceptions.WorkLimitError, match="allowed 2 s"):
                spend(1.5, what="another")
        with metered(9.0, 1e9):
            spend(1.5, what="a third")
            with pytest.raises(dm.exceptions.WorkLimitError, match="allowed 3 s"):
                spend(1.0, what="a fourth")
        with metered(9.0, 1e9), pytest.raises(dm.exceptions.WorkLimitError, match="max_memory"):
            spend(0.0, 101.0, what="a fifth")
        spend(0.5, what="the rest")
    assert not Work(float("nan")).within(1.0, 1.0)
    assert Work(1.0, 5.0) + Work(2.0, 3.0) == Work(3.0, 5.0)
    spend(1e9, what="anything")


def strategies_of(n):
    return [
        dm.Identity(n), dm.LambdaCGD(n, 0.9), dm.SquareRoot(n), dm.SquareRoot(n, 8),
        dm.InverseSquareRoot(n, 8), dm.BandedToeplitz(n, [1.0, 0.5]), dm.BandedInverse(n, [1.0, -0.5]),
        dm.BLT(n, [0.9, 0.5], [0.1, 0.2]), dm.Diagonal(np.ones(n)), dm.Dense(np.eye(n)),
        dm.ColumnNormalized(dm.SquareRoot(n)), dm.ColumnNormalized(dm.ColumnNormalized(dm.LambdaCGD(n, 0.5))),
    ]  # fmt: skip


def test_no_strategy_is_free_and_work_grows_with_its_size():
    kinds = {type(strategy) for strategy in strategies_of(16)}
    known = {kind for kind in dm.Strategy._registry.values() if kind.__module__.startswith("dpmech")}
    assert {kind for kind in known if dataclasses.is_dataclass(kind)} <= kinds
    for small, large in zip(strategies_of(100), strategies_of(400), strict=True):
        for work in (form_work, decoder_work):
            assert 0.0 < work(small).seconds <= work(large).seconds / 3.9
            assert 0.0 < work(small).memory <= work(large).memory / 3.9
        assert form_work(small).seconds <= decoder_work(small).seconds
    assert decoder_work(nested(60)).seconds > decoder_work(nested(1)).seconds


def test_memory_is_estimated_on_the_high_side():
    """Against what Python allocates while the vectors and errors are formed."""
    for strategy in [*strategies_of(16), *strategies_of(400)]:
        small = strategy.n == 16  # imports what is needed
        fresh = dm.Strategy.from_dict(strategy.to_dict())
        tracemalloc.start()
        if fresh.factored is not None:
            _ = fresh.factored.inverse_coefs
        changed(BASE, strategy=fresh, participation=dm.SingleParticipation())._derived()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert small or peak <= decoder_work(strategy).memory, strategy


def test_refinements_beyond_the_foreseen_ones_are_counted(monkeypatch):
    """An inverse whose error falls slowly is refined up to twelve times; the estimates hold for three."""
    errors = iter(2.0**-step for step in range(3, 20))
    monkeypatch.setattr(series, "_column_error", lambda *_: next(errors) ** 2)
    rounds = []
    monkeypatch.setattr(series, "_unaccounted", lambda *_, **__: rounds.append(1))
    with (
        metered(1e-6, 1e9),
        pytest.raises(dm.exceptions.WorkLimitError, match="refining an inverse of 1000 steps"),
    ):
        series.bounded_inverse(np.array([1.0, -0.5]), 1000)
    assert len(rounds) == 3


def counted_of(monkeypatch, certificate, steps=None):
    """What is counted of a certificate, or of a run record of so many steps, by its words."""
    found = {}
    monkeypatch.setattr(
        limits, "spend", lambda seconds, memory=0.0, *, what: found.update({what: (seconds, memory)})
    )
    document = certificate
    if steps is not None:
        document = mock.create_autospec(dm.RunRecord, instance=True, certificate=certificate, steps=steps)
    limits.spend_on_claim(document)
    return found


@pytest.mark.parametrize("dense", [False, True])
def test_the_steps_of_a_run_count_as_vectors_or_as_a_matrix(dense, monkeypatch):
    plain = dm.LambdaCGD(40, 0.5)
    strategy = dm.ColumnNormalized(plain) if dense else plain
    assert strategy.shape.dense_prefix is dense
    certificate = changed(BASE, strategy=strategy, participation=dm.SingleParticipation())
    for steps in (0, 40, None):
        assert "the steps executed" not in counted_of(monkeypatch, certificate, steps)
    for steps in (1, 10, 39):
        seconds, memory = counted_of(monkeypatch, certificate, steps)["the steps executed"]
        # 64 bytes an entry: of the block as a matrix, or of its first column.
        assert memory == 64.0 * (40.0**2 if dense else steps)
        assert seconds >= 2e-8 * memory
