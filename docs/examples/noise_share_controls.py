"""The controls of the noise-share paper, DP-Muon and SVD denoising on a small language model.

LoRA on a random GPT-2 of two layers learns to put generated tables into words
(`lora_table_to_text.py`). Every run has DP-SGD's noise under Poisson sampling
and the budget, clip norm and steps of the settings file; all that differs is
the rule. The data are generated, so that seeds may be fixed and measures that
read clean gradients taken.

Run as `python noise_share_controls.py FOLDER`; the table and every curve go
into the folder. `--settings` names another file than
`noise_share_controls.toml`.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import sys
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import lora_table_to_text as lora
import torch
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.analysis.spectral import steps_to_match
from dpmech.optim import (
    AdamBC,
    Muon,
    PerMatrixClipping,
    attach_denoiser,
    clamp_fraction,
    make_private,
    noise_share,
)

SETTINGS = pathlib.Path(__file__).parent / "noise_share_controls.toml"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all runs share.

    Attributes:
        examples: tables to train on.
        batch_size: expected.
        steps: of a run.
        eps: of the budget.
        delta: of the budget.
        clip_norm: of an example's gradient; with Muon of each matrix.
        seeds: one run of a rule each.
        adam_rate: of DP-Adam and its relatives.
        muon_rate: of Muon, `sgd_rate` of SGD with momentum 0.9.
        sgd_rate: see there.
        floors: of DP-AdamBC, in units of Phi; the last one also without subtraction.
        rates: of DP-Adam, in units of `adam_rate`.
    """

    examples: int
    batch_size: int
    steps: int
    eps: float
    delta: float
    clip_norm: float
    seeds: int
    adam_rate: float
    muon_rate: float
    sgd_rate: float
    floors: tuple[float, ...]
    rates: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule to train with: its inner optimizer, of parameters and Phi."""

    name: str
    make: Callable[[list[torch.nn.Parameter], float], torch.optim.Optimizer]
    denoised: bool = False


def rules(settings: Settings) -> list[Rule]:
    """Those of the paper's Tables 1 and 2, then Muon, the denoiser and SGD."""
    rate = settings.adam_rate

    def adam(times: float) -> Callable[..., torch.optim.Optimizer]:
        return lambda params, _: AdamBC(
            params, times * rate, subtract_noise=False, floor=0.0
        )

    def corrected(floor: float, *, subtract: bool = True) -> Callable[..., Any]:
        return lambda params, phi: AdamBC(
            params, rate, subtract_noise=subtract, floor=floor * phi
        )

    def muon(probes: int) -> Callable[..., torch.optim.Optimizer]:
        return lambda params, _: Muon(
            params, settings.muon_rate, probes=probes, probe_seed=0
        )

    found = [
        Rule(f"DP-Adam, rate {times:g}x", adam(times))
        for times in settings.rates
    ]
    found += [
        Rule(f"DP-AdamBC, floor {floor:g} Phi", corrected(floor))
        for floor in settings.floors
    ]
    last = settings.floors[-1]
    found.append(
        Rule(f"floor only, {last:g} Phi", corrected(last, subtract=False))
    )
    found.append(Rule("DP-Adam, denoised", adam(1.0), denoised=True))
    found += [Rule("DP-Muon", muon(0)), Rule("DP-MuonBC", muon(1))]
    found.append(
        Rule(
            "DP-SGD with momentum",
            lambda params, _: torch.optim.SGD(
                params, settings.sgd_rate, momentum=0.9
            ),
        )
    )
    return found


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of one run.

    Attributes:
        losses: on held-out sentences, every tenth step.
        accuracy: share of their words that are the likeliest.
        share: rho of the last step, freed of the median's bias; None but for Adam.
        clamped: share of coordinates at the floor; None but for Adam.
        cosines: of momentum and of its polar factor with the clean gradient;
            None but for Muon.
    """

    losses: tuple[float, ...]
    accuracy: float
    share: float | None = None
    clamped: float | None = None
    cosines: tuple[float, float] | None = None


EVERY = 10


def train(
    rule: Rule, settings: Settings, cal: dm.Calibration, seed: int
) -> Run:
    """One private run."""
    torch.manual_seed(seed)
    model = lora.language_model()
    params = [one for one in model.parameters() if one.requires_grad]
    phi = cal.noise_variance(0, settings.clip_norm, settings.batch_size)
    inner = rule.make(params, phi)
    if rule.denoised:
        attach_denoiser(inner)
    clipping = None
    if isinstance(inner, Muon):
        clipping = PerMatrixClipping.for_model(
            model, cal.sigma, settings.clip_norm
        )
    private, optimizer, batches = make_private(
        model,
        inner,
        DataLoader(TensorDataset(lora.tables(settings.examples, seed=1))),
        cal,
        None if clipping else settings.clip_norm,
        clipping=clipping,
        expected_batch_size=settings.batch_size,
        generator=seed,
        rng=seed,
    )
    held, losses = lora.tables(300, seed=2), []
    while optimizer.steps_left:
        for (tokens,) in batches:
            optimizer.zero_grad()
            if len(tokens):
                lora.losses(private, tokens).mean().backward()
            optimizer.step()
            if batches.steps_taken % EVERY == 0:
                with torch.no_grad():
                    losses.append(float(lora.losses(model, held).mean()))
    with torch.no_grad():
        accuracy = lora.accuracy_of(model, held)
    found = Run(tuple(losses), accuracy)
    if isinstance(inner, AdamBC):
        return dataclasses.replace(
            found, share=noise_share(inner).rho, clamped=clamp_fraction(inner)
        )
    if isinstance(inner, Muon):
        return dataclasses.replace(
            found, cosines=cosines(inner, clean_gradients(model, settings))
        )
    return found


def cosines(muon: Muon, clean: list[torch.Tensor]) -> tuple[float, float]:
    """Mean cosines of momenta, and of their polar factors, with clean gradients."""
    found = []
    matrices = [p for group in muon.param_groups for p in group["params"]]
    for matrix, target in zip(matrices, clean, strict=True):
        momentum = muon.state[matrix]["momentum_buffer"]
        left, _, right = torch.linalg.svd(momentum, full_matrices=False)
        both = torch.stack([momentum.flatten(), (left @ right).flatten()])
        found.append(torch.cosine_similarity(both, target.flatten()[None]))
    plain, polar = torch.stack(found).mean(0).tolist()
    return plain, polar


def clean_gradients(
    trained: torch.nn.Module, settings: Settings
) -> list[torch.Tensor]:
    """Of the mean loss, neither clipped nor noised, at the trained weights."""
    model = lora.language_model()
    model.load_state_dict(trained.state_dict())
    lora.losses(model, lora.tables(settings.examples, seed=1)).mean().backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


def settings_of(path: pathlib.Path) -> Settings:
    """Read them."""
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    lists = {name: tuple(given.pop(name)) for name in ("floors", "rates")}
    return Settings(**given, **lists)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with every rule, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--settings", type=pathlib.Path, default=SETTINGS)
    given = parser.parse_args(arguments)
    settings = settings_of(given.settings)
    sampling = dm.Poisson(settings.batch_size / settings.examples)
    cal = dm.calibrate_sigma(
        dm.Identity(settings.steps),
        settings.eps,
        settings.delta,
        participation=sampling,
    )
    work = [
        (rule, seed)
        for rule in rules(settings)
        for seed in range(settings.seeds)
    ]
    found: dict[str, list[Run]] = {}
    for rule, seed in track(
        work, "training", console=Console(stderr=True), transient=True
    ):
        found.setdefault(rule.name, []).append(train(rule, settings, cal, seed))
    sys.stdout.write(written(found, cal, given.folder))
    return 0


def written(
    found: dict[str, list[Run]], cal: dm.Calibration, folder: pathlib.Path
) -> str:
    """Write what came out into a folder; the table and the remarks."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {
        name: [dataclasses.asdict(one) for one in each]
        for name, each in found.items()
    }
    text = "\n".join([*table(found), "", *remarks(found, cal)]) + "\n"
    for name, content in (
        ("json", json.dumps(runs, indent=1) + "\n"),
        ("txt", text),
    ):
        path = folder / f"noise_share_controls.{name}"
        path.write_text(content, encoding="utf-8")
    return text


def remarks(found: dict[str, list[Run]], cal: dm.Calibration) -> list[str]:
    """The Muon probe, and the denoiser's speed-up at equal loss."""
    cosines = [one.cosines for one in found["DP-Muon"] if one.cosines]
    plain, polar = (
        statistics.mean(each) for each in zip(*cosines, strict=True)
    )
    steps = cal.strategy.n
    curves = [
        [
            -statistics.mean(each)
            for each in zip(*(one.losses for one in runs), strict=True)
        ]
        for runs in (found["DP-Adam, rate 1x"], found["DP-Adam, denoised"])
    ]
    at = range(EVERY, steps + 1, EVERY)
    needed = steps_to_match(curves[1], curves[0][-1], steps=list(at))
    lines = [
        f"Muon probe: the cosine with the clean gradient is {plain:.3f} for the "
        f"momentum and {polar:.3f} for its polar factor.",
    ]
    if math.isinf(needed):
        return [
            *lines,
            f"With denoising, {steps} steps do not reach the final loss of DP-Adam.",
        ]
    saved = dm.ledgers.epsilon_saved(cal, math.ceil(needed))
    return [
        *lines,
        f"Denoised, the last loss of DP-Adam is reached after {needed:.0f} of "
        f"{steps} steps, which saves eps {saved:.2f}.",
    ]


def table(found: dict[str, list[Run]]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| rule | loss per word | standard deviation | correct words, % | noise share "
        "| share at the floor |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        last = [one.losses[-1] for one in runs]
        spread = statistics.stdev(last) if len(last) > 1 else 0.0
        words = 100 * statistics.mean(one.accuracy for one in runs)
        row = [name, f"{statistics.mean(last):.3f}", f"{spread:.3f}"]
        row += [f"{words:.1f}", _mean(runs, "share"), _mean(runs, "clamped")]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _mean(runs: list[Run], name: str) -> str:
    values = [getattr(one, name) for one in runs]
    if values[0] is None:
        return ""
    return f"{statistics.mean(values):.3f}"


if __name__ == "__main__":
    sys.exit(main())
