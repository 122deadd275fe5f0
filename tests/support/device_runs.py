"""Set-ups of private training, each as a user writes it, on the CPU or on the pretend accelerator."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import (
    AdamBC,
    AdaptiveClip,
    Muon,
    NoiseMode,
    PerLayerClipping,
    PerMatrixClipping,
    SignSGD,
    attach_denoiser,
    make_private,
)
from tests.support.other_device import moved, other
from tests.support.training import classification, classifier, cross_entropy

N, SIZE, BATCH = 8, 16, 4
WIDTHS = (30, 400, 2)  # the first weight has factors that are cheaper than its gradients


def _calibrated(strategy):
    return dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=dm.MinSep(SIZE // BATCH))


CAL = _calibrated(dm.LambdaCGD(N, 0.5))
RULE = AdaptiveClip(0.8, quantile=0.6, rate=0.5, count_share=0.2)
NOT_A_NUMBER = 5  # the example with such an input, where a set-up has one


def by_loss(clipped, **options):
    return {"loss": cross_entropy, "clipping_mode": clipped} | options


def by_hooks(clipped, **options):
    return {"loss": None, "clipping_mode": clipped} | options


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.5)


def denoised(params):
    inner = torch.optim.SGD(params, lr=0.1)
    attach_denoiser(inner)
    return inner


class Layers(nn.Module):
    """Lookups, a convolution and a normalization; factors of all weights but the last cost less there."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.windows = nn.Embedding(40, 32), nn.Conv1d(32, 24, 2)
        self.norm, self.last = nn.LayerNorm(24), nn.Linear(24, 2)

    def forward(self, x):
        words = (5.0 * x[..., :3]).long().clamp(-20, 19) + 20
        seen = torch.tanh(self.windows(self.words(words).movedim(-1, -2)))
        return self.last(self.norm(seen.movedim(-1, -2)).mean(-2))


MODES = {
    "per_example": by_loss("per_example"),
    "ghost": by_loss("ghost"),
    "loop": by_loss("loop"),
    "criterion": by_loss("auto", loss=nn.CrossEntropyLoss()),
    "hooks": by_hooks("per_example"),
    "ghost hooks": by_hooks("ghost"),
    "microbatches": by_loss("per_example", max_physical_batch_size=2),
    "ghost microbatches": by_loss("ghost", max_physical_batch_size=2),
    "hooks in microbatches": by_hooks("ghost", max_physical_batch_size=2),
}
RULES = {
    "SGD": sgd,
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "AdamBC": lambda params: AdamBC(params, lr=0.01),
    "SignSGD": lambda params: SignSGD(params, lr=0.01, momentum=0.9),
    "Muon": lambda params: Muon(params, lr=0.01),
    "denoiser": denoised,
}
NOISES = {
    "identity": (dm.Identity(N), None),
    "regenerated": (dm.LambdaCGD(N, 0.5), None),
    "stored": (dm.LambdaCGD(N, 0.5), NoiseMode.BUFFER),
    "banded": (dm.SquareRoot(N, 3), None),
    "BLT": (dm.BLT(N, [0.9, 0.5], [0.2, 0.1]), None),
}
CLIPPINGS = {
    "adaptive": {"clip_norm": RULE},
    "adaptive, ghost": {"clip_norm": RULE, "clipping_mode": "ghost"},
    "adaptive, hooks": {"clip_norm": RULE, "loss": None, "clipping_mode": "ghost"},
    "by layer": {"clipping": PerLayerClipping([0.5] * 4)},
    "by matrix": {"by_matrix": True},
}
SETUPS = (
    {f"mode: {name}": options for name, options in MODES.items()}
    | {f"layers: {name}": by_loss(name, model=Layers) for name in ("per_example", "ghost", "loop")}
    | {"layers: ghost hooks": by_hooks("ghost", model=Layers)}
    | {f"rule: {name}": by_loss("per_example", rule=rule) for name, rule in RULES.items()}
    | {
        f"noise: {name}": by_loss("per_example", cal=_calibrated(strategy), mode=mode)
        for name, (strategy, mode) in NOISES.items()
    }
    | {f"clipping: {name}": by_loss("per_example") | options for name, options in CLIPPINGS.items()}
    | {
        "generator: secure": by_loss("per_example", generator="secure"),
        "generator: secure-lattice": by_loss(
            "per_example", cal=_calibrated(dm.Identity(N)), generator="secure-lattice"
        ),
        "NaN": by_loss("per_example", not_a_number=True),
        "NaN, ghost": by_loss("ghost", not_a_number=True),
        "NaN, hooks": by_hooks("ghost", not_a_number=True),
    }
)


class Run:
    """One run of a set-up.

    Args:
        options: of a set-up.
        there: whether on the pretend accelerator.
        model: another model than a classifier of two layers.
    """

    def __init__(self, options, *, there, model=None):
        options = {"cal": CAL, "clip_norm": 1.0, "rule": sgd, "generator": 1, "rng": 2} | options
        cal, clip_norm, rule = (options.pop(name) for name in ("cal", "clip_norm", "rule"))
        self.there = there
        make = options.pop("model", lambda: classifier(widths=WIDTHS))
        self.model = make() if model is None else model
        if there:
            self.model = moved(self.model)
        if options.pop("by_matrix", False):
            options["clipping"] = PerMatrixClipping.for_model(self.model, cal.sigma, 0.5)
            clip_norm = None
        if "clipping" in options:
            clip_norm = None
        data = classification(SIZE, WIDTHS[0])
        if options.pop("not_a_number", False):
            data.tensors[0][NOT_A_NUMBER] = torch.nan
        self.loss = options["loss"]
        self.private, self.optimizer, self.loader = make_private(
            self.model,
            rule(self.model.parameters()),
            DataLoader(data, batch_size=BATCH),
            cal,
            clip_norm,
            **options,
        )

    def batches(self, steps):
        """Pairs of inputs and targets on the device until `steps` more steps were made."""
        wanted = self.optimizer.record.steps + steps
        while self.optimizer.record.steps < wanted:
            for batch in self.loader:
                yield [part.to(other()) for part in batch] if self.there else batch
                if self.optimizer.record.steps == wanted:
                    break

    def backward(self, inputs, targets):
        if self.loss is None:
            nn.functional.cross_entropy(self.private(inputs), targets).backward()
        else:
            self.private.backward(inputs, targets)

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        self.backward(inputs, targets)
        self.optimizer.step()

    def train(self, steps=N):
        for inputs, targets in self.batches(steps):
            self.step(inputs, targets)
        return self

    def weights(self):
        return torch.cat([param.detach().cpu().flatten() for param in self.model.parameters()])

    def close(self):
        self.optimizer.close()
