"""The check of a device: its report, and faults that it has to find."""

import re
import warnings

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from dpmech.mechanism import Identity, LambdaCGD  # noqa: E402
from dpmech.optim.clipping import Factored, clipped_gradients  # noqa: E402
from dpmech.optim.device_check import __main__ as command  # noqa: E402
from dpmech.optim.device_check import checks  # noqa: E402
from dpmech.optim.device_check.measurements import Measured, sizes_for  # noqa: E402
from dpmech.optim.noise import NoiseStream  # noqa: E402
from dpmech.optim.runs import load_checkpoint  # noqa: E402
from tests.support.other_device import known, other, other_device  # noqa: E402

CPU = torch.device("cpu")
VALUES = 1 << 14


def test_a_report_is_written(tmp_path):
    out = tmp_path / "report.md"
    assert command.main(["--device", "cpu", "--small", "--out", str(out)]) == 0
    text = out.read_text()
    assert text.startswith("# Private training on a CPU")
    assert "10 of 10 checks passed." in text
    assert "failed" not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) > 25
    assert len([line for line in tables if "ms" in line]) >= 9
    ratios = [float(line.split("|")[4]) for line in tables if re.search(r"\| \d+\.\d\d \|", line)]
    assert all(ratio > 0.0 for ratio in ratios)
    for width in {line.count("|") for line in tables}:
        assert width in {5, 6}


def test_a_failed_check_is_on_the_first_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "noise", lambda *_: [Measured("a", None, why="out of memory")])
    monkeypatch.setattr(command, "steps", lambda *_: [])
    bad = {"clipping": checks.Check(passed=False, seen="2", allowed="1"), "b": checks.Check(None, "", "")}
    monkeypatch.setattr(command, "run_checks", lambda *_, **__: bad)
    assert command.main(["--device", "cpu", "--out", str(tmp_path / "x.md")]) == 1
    text = (tmp_path / "x.md").read_text()
    assert "0 of 1 checks passed; **failed: clipping**. Do not train on private data on this device." in text
    assert "| a | out of memory |  |  |" in text


def test_it_is_printed_without_a_file(monkeypatch, capsys):
    for name, found in {"noise": [], "steps": [], "run_checks": {}}.items():
        monkeypatch.setattr(command, name, lambda *_, found=found, **__: found)
    assert command.main(["--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("# Private training on a CPU")


@pytest.mark.parametrize("factor", [1.0 - 2.0**-20, 1.0001])
def test_norms_of_another_size_are_found(factor, monkeypatch):
    assert checks.norms(CPU).passed
    own = Factored.squares
    monkeypatch.setattr(Factored, "squares", lambda self: own(self) * factor)
    assert not checks.norms(CPU).passed


@pytest.mark.parametrize("factor", [1.01, 0.98])
def test_sums_of_another_size_are_found(factor, monkeypatch):
    def scaled(*args, **kwargs):
        found = clipped_gradients(*args, **kwargs)
        for one in found.sums:
            one.mul_(factor)
        return found

    assert checks.clipping(CPU, "per_example").passed
    monkeypatch.setattr(checks, "clipped_gradients", scaled)
    assert checks.clipping(CPU, "per_example").passed is False


def test_an_example_above_the_clip_norm_is_found(monkeypatch):
    def longer(model, loss, batch, clip_norm, **options):
        factor = 1.0001 if len(batch[0]) == 1 else 1.0
        return clipped_gradients(model, loss, batch, clip_norm * factor, **options)

    monkeypatch.setattr(checks, "clipped_gradients", longer)
    found = checks.clipping(CPU, "ghost")
    assert found.passed is False
    assert "longest example 1.0000" in found.seen


class Wrong(NoiseStream):
    """A stream with a fault."""

    fault = staticmethod(lambda row: row)

    def add_step(self, sums, *args, **options):
        super().add_step(sums, *args, **options)
        for row in sums:
            row.copy_(self.fault(row))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("too small", lambda row: 0.9 * row),
        (
            "two values alike",
            lambda row: row.roll(1) * 0.5**0.5 + row * 0.5**0.5 if row.mean() > 9 else -row.abs(),
        ),
        ("uniform", lambda row: row.std() * (2.0 * torch.rand_like(row) - 1.0) * 3.0**0.5),
        ("cut off", lambda row: row.clamp(-2.0 * row.std(), 2.0 * row.std())),
    ],
)
def test_wrong_noise_is_found(name, fault, monkeypatch):
    assert checks.covariance(CPU, Identity(8), VALUES).passed
    monkeypatch.setattr(Wrong, "fault", staticmethod(fault))
    monkeypatch.setattr(checks, "NoiseStream", Wrong)
    assert checks.covariance(CPU, Identity(8), VALUES).passed is False


def test_independent_noise_in_place_of_correlated_is_found(monkeypatch):
    assert checks.covariance(CPU, LambdaCGD(8, 0.5), VALUES).passed
    plain = checks.calibrate_sigma
    monkeypatch.setattr(
        checks, "calibrate_sigma", lambda strategy, *given: plain(Identity(strategy.n), *given)
    )
    assert checks.covariance(CPU, LambdaCGD(8, 0.5), VALUES).passed is False


def test_a_resumed_run_that_differs_is_found(monkeypatch):
    def loaded(path, model, optimizer, loader):
        load_checkpoint(path, model, optimizer, loader)
        optimizer.param_groups[0]["lr"] *= 2.0

    assert checks.resume(CPU).passed
    monkeypatch.setattr(checks, "load_checkpoint", lambda *_: None)
    assert checks.resume(CPU).passed is False
    monkeypatch.setattr(checks, "load_checkpoint", loaded)
    with pytest.raises(dm.UnsupportedCombinationError, match="lr changed"):
        checks.resume(CPU)


def test_an_error_is_a_failed_check(monkeypatch):
    def fails(*_):
        raise RuntimeError("no kernel\nfor it")

    for name in ("clipping", "norms", "covariance", "resume", "secure", "kernel", "waits"):
        monkeypatch.setattr(checks, name, fails)
    found = checks.run_checks(CPU, small=True)
    assert len(found) == 12
    assert {(one.passed, one.seen) for one in found.values()} == {(False, "RuntimeError: no kernel for it")}


def test_another_key_is_found(monkeypatch):
    assert checks.secure(CPU).passed
    monkeypatch.setattr(NoiseStream, "load_state_dict", lambda *_: None)
    assert checks.secure(CPU).passed is False


def test_sizes_grow_with_the_device():
    small, host, gpu = (
        sizes_for(torch.device(kind), small=tiny)
        for kind, tiny in (("cuda", True), ("cpu", False), ("cuda", False))
    )
    assert small.vision.width < host.vision.width < gpu.vision.width
    width, depth = gpu.language.width, gpu.language.depth
    assert 12 * depth * width**2 > 1e9  # weights of the blocks
    assert gpu.values == (10**6, 10**8, 10**9)


@pytest.mark.slow
@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
def test_another_device_passes(monkeypatch):
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with other_device():
            found = checks.run_checks(other(), small=True)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
    assert [name for name, one in found.items() if one.passed is False] == []
    assert len(found) == 12


def test_a_kernel_that_is_not_used_is_found(monkeypatch):
    """Seen from the warning of the noise; a device that says it is CUDA stands for one."""
    pretends = type("", (), {"type": "cuda"})()
    monkeypatch.setattr(checks, "fused_on", lambda device: device is pretends)
    monkeypatch.setattr(checks, "NoiseStream", lambda *_, **__: Silent())
    monkeypatch.setattr(checks.torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(checks, "_row", lambda *_: None)
    assert checks.kernel(pretends).passed
    monkeypatch.setattr(
        checks,
        "_row",
        lambda *_: warnings.warn("the noise kernel is not used on cuda: a bit differs", stacklevel=1),
    )
    found = checks.kernel(pretends)
    assert (found.passed, found.seen) == (False, "the noise kernel is not used on cuda: a bit differs")
    monkeypatch.setattr(checks, "fused_on", lambda _: False)
    assert checks.kernel(pretends).passed is False
    assert checks.kernel(CPU).passed is None


class Silent:
    def close(self):
        pass
