"""One row of noise, one release: no copies, no second process, no second live stream with the same key."""

import copy
import gc
import os
import pickle
import threading

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import NoiseStream, PrivateOptimizer, make_private

CAL = dm.calibrate_sigma(dm.LambdaCGD(6, 0.9), 8.0, 1e-5, participation=dm.MinSep(3, 2))


def stream(generator=7, **options):
    return NoiseStream(CAL, [torch.zeros(4)], generator=generator, **options)


def optimizer(generator=7):
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
    return PrivateOptimizer(inner, CAL, expected_batch_size=4, generator=generator)


def run(generator=7):
    """Model, optimizer and loader of a run whose model and loader belong to the optimizer."""
    model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(6, 2), torch.randn(6, 1))

    def loss(model, x, y):
        return (model(x) - y).square().sum()

    given = {"loss": loss, "expected_batch_size": 2, "generator": generator, "rng": 1}
    return make_private(model, sgd, DataLoader(data), CAL, **given)


# ---- copies

COPIES = [
    pytest.param(copy.copy, "copied", id="copy"),
    pytest.param(copy.deepcopy, "copied", id="deepcopy"),
    pytest.param(pickle.dumps, "pickled", id="pickle"),
    pytest.param(lambda one: pickle.dumps(one, protocol=0), "pickled", id="pickle 0"),
    pytest.param(lambda one: copy.deepcopy({"inside": [one]}), "copied", id="inside"),
    pytest.param(lambda one: torch.save(one, os.devnull), "pickled", id="torch.save"),
]
MAKERS = {
    "NoiseStream": stream,
    "PrivateOptimizer": optimizer,
    "BatchOptimizer": lambda: run()[1],
    "PrivateLoader": lambda: run()[2],
}


@pytest.mark.parametrize(("how", "word"), COPIES)
@pytest.mark.parametrize("name", MAKERS)
def test_copies_are_refused_with_the_reason(name, how, word):
    one = MAKERS[name]()
    with pytest.raises(dm.UnsupportedCombinationError, match=f"a {name} was {word}: .*state_dict"):
        how(one)


@pytest.mark.parametrize(("how", "word"), COPIES)
def test_a_private_model_takes_no_copy_of_its_optimizer_along(how, word):
    model, private, _ = run()
    with pytest.raises(dm.UnsupportedCombinationError, match=f"a model of make_private was {word}.*module"):
        how(model)
    copy.deepcopy(model.state_dict())
    assert private.steps_left == 6


def test_torch_operations_on_an_optimizer_still_work(tmp_path):
    one = optimizer()
    scheduler = torch.optim.lr_scheduler.StepLR(one, step_size=1)
    one.step()
    scheduler.step()
    torch.save({"opt": one.state_dict(), "lr": scheduler.state_dict()}, tmp_path / "state.pt")
    copy.deepcopy(one.state_dict())
    assert repr(one)
    _, _, loader = run(8)
    state = copy.deepcopy(loader.state_dict())
    assert state["steps"] == 0


def test_workers_of_a_loader_need_no_copy_of_it():
    model = torch.nn.Linear(2, 1)
    data = TensorDataset(torch.randn(6, 2), torch.randn(6, 1))
    workers = DataLoader(data, num_workers=1, multiprocessing_context="fork")
    model, private, loader = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        workers,
        CAL,
        loss=lambda f, x, y: (f(x) - y).square().sum(),
        expected_batch_size=2,
        generator=3,
    )
    for x, y in loader:
        model.backward(x, y)
        private.step()
    assert private.steps_left == 3


# ---- processes


def in_child(work):
    """The outcome of `work` in a forked process: the text of its error, or that it succeeded."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            text = "went through"
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent wants to know
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_cannot_go_on_with_the_noise():
    one, whole = stream(), optimizer(8)
    state = stream(9).state_dict()
    for work in (
        one.step,
        lambda: one.add_step([torch.zeros(4)]),
        lambda: one.load_state_dict(state),
        whole.step,
    ):
        text = in_child(work)
        assert text.startswith("UnsupportedCombinationError"), text
        assert f"a NoiseStream of process {os.getpid()} is used in process" in text
    assert in_child(one.state_dict) == "went through"  # saving a checkpoint releases nothing
    assert in_child(lambda: stream(7).step()) == "went through"  # each process of a group has its key
    one.step()
    whole.step()
    assert (one.steps_taken, whole.steps_left) == (1, 5)


# ---- keys in use

SAME = "another live NoiseStream or PrivateOptimizer of this process draws the same noise"


@pytest.mark.parametrize("first", [stream, optimizer])
@pytest.mark.parametrize("second", [stream, optimizer])
def test_an_equal_seed_twice_is_refused_while_the_first_lives(first, second):
    one = first()
    with pytest.raises(dm.UnsupportedCombinationError, match=SAME) as caught:
        second()
    assert "optimizer.close() of the other one first" in str(caught.value)
    one.step()
    del one
    assert second().steps_left == 6


def test_a_seed_is_free_once_its_stream_is_closed():
    one = stream()
    one.step()
    state = one.state_dict()
    one.close()
    two = stream()
    with pytest.raises(dm.UnsupportedCombinationError, match="closed"):
        one.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="closed"):
        one.load_state_dict(state)
    assert one.state_dict()["step"] == 1
    one.close()  # a second close has no effect: the key belongs to the other stream
    with pytest.raises(dm.UnsupportedCombinationError, match=SAME):
        stream()
    private = optimizer(8)
    private.close()
    with pytest.raises(dm.UnsupportedCombinationError, match="closed"):
        private.step()
    optimizer(8)
    assert two.steps_left == 6


def test_a_saved_state_resumes_in_one_stream_only():
    one = stream()
    one.step()
    state = one.state_dict()
    two = stream(8)
    with pytest.raises(dm.UnsupportedCombinationError, match=SAME):
        two.load_state_dict(state)
    assert two.state_dict()["key"] != state["key"]  # a refusal leaves it unchanged
    expected = one.step()
    del one
    two.load_state_dict(state)
    assert torch.equal(two.step()[0], expected[0])
    three = stream(8)  # the seed that the second stream released
    with pytest.raises(dm.UnsupportedCombinationError, match=SAME):
        three.load_state_dict(state)


def test_a_refused_state_keeps_the_key():
    one = stream()
    state = stream(8).state_dict() | {"fingerprints": ["0" * 64]}
    with pytest.raises(dm.exceptions.CertificateError, match="draw other numbers"):
        one.load_state_dict(state)
    with pytest.raises(dm.UnsupportedCombinationError, match=SAME):
        stream()
    assert stream(8).steps_left == 6


def test_streams_in_reference_cycles_release_their_keys():
    gc.disable()
    try:
        one = optimizer()
        one.itself = one
        del one
        assert optimizer().steps_left == 6
    finally:
        gc.enable()


def test_streams_on_operating_system_entropy_never_meet():
    assert len({tuple(one.state_dict()["key"]) for one in [stream(None) for _ in range(20)]}) == 20


@pytest.mark.slow
def test_two_threads_cannot_take_one_seed():
    made, refused = [], []

    def make():
        try:
            made.append(stream())
        except dm.UnsupportedCombinationError:
            refused.append(1)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
