"""The examples that people look for, as they are run: shorter, and each ends with a verified record."""

import importlib

import pytest

import dpmech as dm
from dpmech.certificates import Randomness

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("transformers")
pytest.importorskip("babel")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# What is given, how many steps that is, and the least accuracy, far below what came out here.
RUNS = {
    "tabular": (["--epochs", "5", "--eps", "8"], 25, 0.75),
    "images_from_scratch": (["--epochs", "4"], 20, 0.35),
    "texts_with_padding": (["--epochs", "2", "--batch", "400"], 40, 0.14),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_example_ends_with_accuracy_budget_certificate_and_report(name, tmp_path, capsys):
    given, steps, least = RUNS[name]
    assert importlib.import_module(name).main([str(tmp_path / "made"), *given]) == 0
    accuracy, budget, verdict, files = capsys.readouterr().out.splitlines()
    assert accuracy.startswith("accuracy ")
    assert float(accuracy.split()[1]) > least
    assert budget.startswith(f"deterministic upper bound; {steps} of {steps} steps executed, eps ")
    assert "VERIFIED" in verdict
    record = dm.RunRecord.load(tmp_path / "made" / "run.json")
    assert (record.steps, record.stopped_by_plan) == (steps, False)
    assert record.certificate == dm.Certificate.load(tmp_path / "made" / "certificate.json")
    assert record.executed.upper <= 8.0
    report = (tmp_path / "made" / "report.md").read_text(encoding="utf-8")
    assert f"{steps} of {steps}" in report
    assert all(one in files for one in ("certificate.json", "run.json", "report.md"))


def test_a_name_of_padding_alone_does_not_count():
    """A row's scores do not depend on what its batch is padded to."""
    import torch

    texts = importlib.import_module("texts_with_padding")
    torch.manual_seed(0)
    model = texts.Classifier().eval()
    words = torch.tensor([[3, 4, 5]])
    longer = torch.tensor([[3, 4, 5, 0, 0]])
    with torch.no_grad():
        short = model(words, torch.ones_like(words))
        padded = model(longer, (longer != 0).long())
    torch.testing.assert_close(short, padded, rtol=1e-5, atol=1e-6)


def test_a_failed_verification_is_no_result(tmp_path, monkeypatch):
    """Nothing is said about a run that does not verify."""
    import subprocess

    finishing = importlib.import_module("finishing")
    failed = subprocess.CompletedProcess([], 1, stdout="FAILED", stderr="")
    monkeypatch.setattr(finishing.subprocess, "run", lambda *_, **__: failed)
    cal = dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5)
    sources = {name: Randomness(name, "0" * 64, seeded=False) for name in ("sampler", "noise")}
    record = dm.RunRecord(
        cal.certificate(1.0, 4.0), 2, cal.achieved, **sources, smallest_separation=1, most_participations=2
    )
    with pytest.raises(SystemExit, match="FAILED"):
        finishing.finish(record, tmp_path, 0.5)
