"""What correlated noise costs: against independent noise, generator, memory, and a private ViT-B example."""

import resource
import time

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from dpmech.optim import FlatClipping, NoiseMode, NoiseStream, clipped_gradients  # noqa: E402
from dpmech.optim.clipping.clipped_sum import clip_and_sum  # noqa: E402

N = 1000
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
STRATEGIES = {
    "independent": dm.Identity(N),
    "lambda-cgd": dm.LambdaCGD(N, 0.9),
    "bisr p=4": dm.InverseSquareRoot(N, 4),
    "bisr p=16": dm.InverseSquareRoot(N, 16),
    "blt d=3": dm.BLT(N, [0.99, 0.87, 0.43], [0.13, 0.2, 0.16]),
    "blt d=4": dm.BLT(N, [0.99, 0.87, 0.43, 0.2], [0.13, 0.2, 0.16, 0.05]),
    "bsr p=16": dm.SquareRoot(N, 16),
}


def vit(width, depth):
    """Shapes of a vision transformer's parameters."""
    block = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width), (4 * width,)]
    block += [(width, 4 * width), (width,), *[(width,)] * 4]
    return [(width, 768), (width,), (197, width), *block * depth, (width,), (width,), (1000, width), (1000,)]


MODELS = {"ViT-S": vit(384, 12), "ViT-B": vit(768, 12), "ViT-H": vit(1280, 32)}


def measured(benchmark, device, call):
    """Wall-clock and processor seconds of one call, the least of three, after one to warm up."""

    def timed():
        if device == "cuda":
            torch.cuda.synchronize()
        wall, processor = time.perf_counter(), time.process_time()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - wall, time.process_time() - processor))

    times = []
    timed()
    times.clear()
    benchmark.pedantic(timed, rounds=3)
    return tuple(min(column) for column in zip(*times, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("model", "name", "mode"),
    [
        *[("ViT-B", name, None) for name in STRATEGIES if name != "bsr p=16"],
        ("ViT-S", "bsr p=16", NoiseMode.RECURSION),  # fifteen vectors in float64: 2.6 GB
        ("ViT-S", "bisr p=16", NoiseMode.BUFFER),  # fifteen in float32: 1.3 GB
        ("ViT-S", "blt d=4", NoiseMode.RECURSION),
        ("ViT-B", "lambda-cgd", NoiseMode.BUFFER),
        ("ViT-B", "bisr p=16", NoiseMode.BUFFER),
        ("ViT-H", "independent", None),
        ("ViT-H", "lambda-cgd", None),
    ],
)
def test_one_step_of_noise(benchmark, model, name, mode, device):
    params = [torch.empty(shape, device=device) for shape in MODELS[model]]
    sums = [torch.zeros(shape, device=device) for shape in MODELS[model]]
    size = sum(param.numel() for param in params)
    strategy = STRATEGIES[name]
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5)
    stream = NoiseStream(cal, params, mode=mode)
    stream.load_state_dict(stream.state_dict() | {"step": 20})  # past the first, shorter rows
    stream.add_step(sums)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = measured(benchmark, device, lambda: stream.add_step(sums))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    draws = strategy.inverse_bands if stream.mode is NoiseMode.REGENERATE else 1
    kept = sum(x.nbytes for vectors in stream.state_dict()["state"] for x in vectors)
    print(
        f"{device} {model} {size / 1e6:.0f} M {name} {stream.mode.value}: "
        f"wall {wall:.3f} s, CPU {processor:.3f} s, {draws} draws, "
        f"CPU {processor / size / draws * 1e9:.2f} ns each, RSS + {grown / 1e3:.1f} MB, "
        f"state {kept / size:.0f} bytes a value"
    )


def test_the_generator_alone(benchmark):
    chunk = np.empty(1 << 15, dtype=np.float32)
    generator = np.random.Generator(np.random.Philox(1))

    def draw():
        for _ in range(200):
            generator.standard_normal(dtype=np.float32, out=chunk)

    _, processor = measured(benchmark, "cpu", draw)
    print(f"numpy Philox, float32 normals: CPU {processor / (200 * chunk.size) * 1e9:.2f} ns")


@pytest.mark.parametrize("name", ["independent", "lambda-cgd", "blt d=4"])
def test_noise_from_a_cipher(benchmark, name):
    """One step for 5 million values from AES and from Philox, in turns."""
    params, sums = [torch.empty(5_000_000)], [torch.zeros(5_000_000)]
    cal = dm.calibrate_sigma(STRATEGIES[name], 8.0, 1e-5)
    streams = [NoiseStream(cal, params, generator=name) for name in ("philox", "secure")]
    found = {stream.generator: [] for stream in streams}
    for stream in streams:
        stream.add_step(sums)

    def both():
        for stream in streams:
            start = time.process_time()
            stream.add_step(sums)
            found[stream.generator].append((time.process_time() - start) / 5e6 * 1e9)

    benchmark.pedantic(both, rounds=5)
    print(f"{name}: " + ", ".join(f"{key} {min(times):.1f} ns a value" for key, times in found.items()))


@pytest.mark.parametrize("device", DEVICES)
def test_memory_alone(benchmark, device):
    """The sum is read and written and one vector is read: what adding finished noise would cost."""
    total, noise = (torch.zeros(87_000_000, device=device) for _ in range(2))
    _, processor = measured(benchmark, device, lambda: total.add_(noise))
    print(f"{device} adding a vector: CPU {processor / total.numel() * 1e9:.2f} ns a value")


@pytest.mark.parametrize("device", DEVICES)
def test_forward_and_backward_of_a_vit_b_example(benchmark, device):
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device)
    x = torch.randn(1, 197, 768, device=device)
    wall, processor = measured(benchmark, device, lambda: model(x).square().mean().backward())
    print(f"{device} ViT-B: an example forward and backward, wall {wall:.3f} s, CPU {processor:.3f} s")


@pytest.mark.parametrize("device", DEVICES)
def test_a_private_vit_b_example(benchmark, device):
    """Gradients of single examples, clipped and summed: what a step of private training does for each."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device)
    batch = (torch.randn(2, 197, 768, device=device),)

    def loss(model, x):
        # vmap has no rule for the fused kernel on CPUs, and would go through it example by example.
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return model(x[None]).square().mean()

    wall, processor = measured(
        benchmark, device, lambda: clipped_gradients(model, loss, batch, 1.0, microbatch_size=2)
    )
    print(f"{device} private ViT-B example: wall {wall / 2:.3f} s, CPU {processor / 2:.3f} s")


@pytest.mark.parametrize("device", DEVICES)
def test_clipping(benchmark, device):
    samples = [torch.randn(16, 768, 3072, device=device)]
    blocks = FlatClipping(1.0).blocks([None])
    _, processor = measured(benchmark, device, lambda: clip_and_sum(samples, blocks))
    print(f"{device} clipping: CPU {processor / samples[0].numel() * 1e9:.2f} ns a value of an example")
