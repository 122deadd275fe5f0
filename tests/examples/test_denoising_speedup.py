"""The denoiser's speed-up at equal accuracy: what is read off curves, and what the page says."""

import json
import pathlib

import numpy as np
import pytest

pytest.importorskip("torch")

import denoising_speedup as speedup
import torch

import dpmech as dm
from tests.support.tasks import small_task


def settings(**changes):
    found = speedup.settings_of(speedup.SETTINGS)
    return speedup.dataclasses.replace(found, **changes)


def test_every_optimizer_has_a_plain_and_a_denoised_run():
    plain, denoised = speedup.rules(settings())[::2], speedup.rules(settings())[1::2]
    assert [one.name for one in plain] == [one.name for one in denoised]
    assert not any(one.denoised for one in plain)
    assert all(one.denoised for one in denoised)


def test_a_speedup_is_that_of_the_mean_curves():
    """The plain run has 0.6 at step 40, the denoised one half-way between its steps 20 and 30."""
    cal = dm.calibrate_sigma(dm.Identity(40), 4.0, 1e-5, participation=dm.Poisson(0.1))
    plain = speedup.Curve(1.0, True, [[0.1, 0.2, 0.4, 0.5], [0.3, 0.4, 0.6, 0.7]], (0.1, 0.2))
    denoised = speedup.Curve(1.0, True, [[0.2, 0.4, 0.6, 0.7], [0.4, 0.6, 0.8, 0.9]], (0.1, 0.2))
    cells = speedup.speedup(plain, denoised, settings(every=10), cal, 40)
    saved = cal.achieved.upper - dm.executed_epsilon(cal, 25).upper
    assert cells == ["60.0", "80.0", "+20.0 ± 0.0", "38 %", f"{saved:.2f}"]
    slower = speedup.speedup(denoised, plain, settings(every=10), cal, 40)
    assert slower[2:] == ["-20.0 ± 0.0", "not reached", "none"]


def test_a_cosine_is_that_of_the_whole_gradient():
    generator = torch.Generator().manual_seed(1)
    first, second = (
        [torch.randn(2, rows, 3, columns, generator=generator) for rows, columns in ((4, 5), (6, 2))]
        for _ in range(2)
    )
    found = speedup.cosine(first, second)
    for seed in range(2):
        for rate in range(3):
            a, b = (torch.cat([one[seed, :, rate].ravel() for one in each]) for each in (first, second))
            assert float(found[seed, rate]) == pytest.approx(
                float(torch.cosine_similarity(a, b, 0)), rel=1e-5
            )


def test_the_script_trains_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speedup, "TASKS", {"texts": lambda: small_task(train=100, test=40)})
    path = tmp_path / "settings.toml"
    lines = ["bins = 5", "epochs = 2", "eps = 50.0", "seeds = 2", "every = 5", "milestones = [5, 10]"]
    path.write_text("\n".join([*lines, "rates = 3", "sgd_rate = 0.1", "adam_rate = 0.01"]), encoding="utf-8")
    assert speedup.main([str(tmp_path), "--settings", str(path)]) in {0, 1}
    table = (tmp_path / "denoising_speedup.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == table
    assert table.count("| Adam | ") == table.count("| SGD with momentum | ") == 2
    found = json.loads((tmp_path / "denoising_speedup.json").read_text(encoding="utf-8"))
    assert {np.shape(one["test"]) for one in found.values()} == {(2, 2)}
    assert all(torch.isfinite(torch.tensor(one["test"])).all() for one in found.values())


def test_the_committed_table_is_that_of_the_curves():
    folder = pathlib.Path(speedup.__file__).parents[1] / "figures"
    found = json.loads((folder / "denoising_speedup.json").read_text(encoding="utf-8"))
    whole = settings()
    cal = dm.calibrate_sigma(
        dm.Identity(whole.bins * whole.epochs),
        whole.eps,
        speedup.DELTA,
        participation=dm.Poisson(1.0 / whole.bins),
    )
    curves = [
        (rule, speedup.Curve(**one)) for rule, one in zip(speedup.rules(whole), found.values(), strict=True)
    ]
    assert (folder / "denoising_speedup.txt").read_text(encoding="utf-8") == speedup.table(curves, whole, cal)
    assert all(one.inside for _, one in curves)  # no best rate is at an end of its grid
