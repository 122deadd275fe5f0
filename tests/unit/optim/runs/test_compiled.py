"""torch.compile around a model: the same steps as without it, or an error that says what works."""

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from tests.support.device_runs import WIDTHS, Run, by_hooks, by_loss  # noqa: E402
from tests.support.training import classifier  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

MODES = {
    "per_example": by_loss("per_example"),
    "loop": by_loss("loop"),
    "criterion": by_loss("auto", loss=torch.nn.CrossEntropyLoss()),
    "ghost hooks": by_hooks("ghost"),
}


def model(**options):
    made = classifier(widths=WIDTHS)
    return torch.compile(made, **options) if options else made


def trained(options, **compiled):
    run = Run(options, there=False, model=model(**compiled))
    run.train(2)
    run.close()
    return run


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "eager") for name in MODES),
        pytest.param("per_example", "aot_eager", marks=pytest.mark.slow),
        pytest.param("ghost hooks", "aot_eager", marks=pytest.mark.slow),
    ],
)
def test_steps_are_those_without_it(name, backend):
    plain = trained(MODES[name])
    found = trained(MODES[name], backend=backend)
    assert not torch.equal(plain.weights(), model_weights())
    torch.testing.assert_close(found.weights(), plain.weights(), rtol=0.0, atol=1e-6)


def test_around_a_private_model_with_hooks_nothing_is_compiled():
    asked = []
    run = Run(MODES["ghost hooks"], there=False)
    plain = run.private
    run.private = torch.compile(plain, backend=lambda graph, _: asked.append(graph) or graph.forward)
    run.train(2)
    run.close()
    one = torch.ones(1, WIDTHS[0])
    assert torch.equal(run.private(one), plain(one))
    assert not asked
    torch.testing.assert_close(run.weights(), trained(MODES["ghost hooks"]).weights(), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("name", list(MODES))
def test_only_a_loop_trains_with_compiled_code_and_the_others_say_so(name, caplog, tmp_path):
    calls = tmp_path / "calls"  # a file: a list would be restored after every example, a count refused
    calls.touch()

    def backend(graph, _):
        def called(*given):
            with calls.open("a") as file:
                file.write(".")
            return graph.forward(*given)

        return called

    run = Run(MODES[name], there=False, model=model(backend=backend))
    before = calls.stat().st_size  # those of trials
    run.train(2)
    trained_compiled = calls.stat().st_size > before
    looped = run.optimizer.clipping_mode == "loop"
    run.close()
    said = [one for one in caplog.messages if "torch.compile has no effect" in one]
    assert looped == (name == "loop") == trained_compiled == (not said)
    assert len(said) <= 1


def test_a_model_that_is_not_compiled_is_not_spoken_of(caplog):
    Run(MODES["ghost hooks"], there=False).close()
    assert not caplog.messages


def model_weights():
    return torch.cat([param.detach().flatten() for param in model().parameters()])


def test_auto_says_why_there_are_no_factors():
    run = Run(MODES["criterion"], there=False, model=model(backend="eager")).train(1)
    assert run.optimizer.clipping_mode == "per_example"
    assert "compiled function" in str(run.private.clipping_choice)
    run.close()


def test_factors_of_a_compiled_model_are_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="clipping_mode='per_example'; or none"):
        trained(by_loss("ghost"), backend="eager")


def test_hooks_that_would_be_compiled_are_refused():
    made = model()
    made.compile(backend="eager")
    with pytest.raises(dm.UnsupportedCombinationError, match=r"supported: torch.compile\(model\)"):
        Run(by_hooks("ghost"), there=False, model=made)


def test_a_model_that_was_compiled_in_place_is_trained_with_a_loss():
    made = model()
    made.compile(backend="eager")
    run = Run(MODES["per_example"], there=False, model=made).train(2)
    run.close()
    torch.testing.assert_close(run.weights(), trained(MODES["per_example"]).weights(), rtol=0.0, atol=1e-6)
