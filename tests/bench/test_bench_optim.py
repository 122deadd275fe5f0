"""Update rules against torch's own; run with `pytest tests/bench/test_bench_optim.py --benchmark-only -s`."""

import time

import pytest

torch = pytest.importorskip("torch")

from dpmech.optim.rules.adam import AdamBC  # noqa: E402
from dpmech.optim.rules.base import SignSGD  # noqa: E402
from dpmech.optim.rules.denoiser import attach_denoiser  # noqa: E402
from dpmech.optim.rules.muon import QUINTIC_COEFS, Muon  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# One twelfth of ViT-B: the matrices of one block, and its vectors.
BLOCK = [(2304, 768), (768, 768), (3072, 768), (768, 3072), (2304,), (768,), (3072,), (768,), (768,), (768,)]
# RoBERTa-base with LoRA of rank 16 on the six linear layers of each of its 12 blocks.
LORA = [(16, 768)] * 60 + [(768, 16)] * 60 + [(16, 3072)] * 12 + [(3072, 16)] * 12
DENSE = [(768, 768)] * 4 + [(3072, 768), (768, 3072)]


def parameters(shapes):
    params = [torch.nn.Parameter(torch.zeros(shape, device=DEVICE)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def stepper(optimizer):
    for group in optimizer.param_groups:
        group["phi"] = 1.0

    def step():
        optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    step()
    return step


RULES = {
    "torch SGD": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
    "torch AdamW": torch.optim.AdamW,
    "torch AdamW foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "AdamBC": AdamBC,
    "AdamBC low-pass": lambda params: AdamBC(params, low_pass=0.9),
    "SignSGD": SignSGD,
}


@pytest.mark.parametrize("name", RULES)
def test_elementwise_rules(benchmark, name):
    benchmark(stepper(RULES[name](parameters(BLOCK))))


MUONS = {
    "torch Muon (bfloat16 products)": torch.optim.Muon,
    "quintic, float32": lambda params: Muon(params, coefs=QUINTIC_COEFS),
    "quintic, bfloat16 products": lambda params: Muon(
        params, coefs=QUINTIC_COEFS, compute_dtype=torch.bfloat16
    ),
    "p_2, float32": Muon,
    "p_2, one probe": lambda params: Muon(params, probes=1),
}


@pytest.mark.parametrize("name", MUONS)
def test_muon(benchmark, name):
    step = stepper(MUONS[name](parameters([shape for shape in BLOCK if len(shape) == 2])))
    benchmark.pedantic(step, rounds=3)


@pytest.mark.parametrize(("name", "shapes"), [("LoRA", LORA), ("dense, one of 12 blocks", DENSE)])
def test_denoiser(benchmark, name, shapes):
    params = parameters(shapes)
    optimizer = torch.optim.SGD(params, lr=0.0)
    bare = stepper(optimizer)
    start = time.perf_counter()
    bare()
    plain = time.perf_counter() - start
    # Noise below the gradients' own, so that every layer is worked on and not only looked at.
    attach_denoiser(optimizer)
    step = stepper(optimizer)
    for group in optimizer.param_groups:
        group["phi"] = 0.25
    benchmark.pedantic(step, rounds=3)
    print(f"{name}: SGD alone {1e3 * plain:.1f} ms")
