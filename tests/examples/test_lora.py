import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("transformers")
opacus = pytest.importorskip("opacus")

import lora_table_to_text as lora  # noqa: E402 - after the checks for what it needs

import dpmech as dm  # noqa: E402
from dpmech.optim import FlatClipping, clipped_gradients  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # transformers takes seconds to import
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return lora.language_model()


def test_only_lora_is_trained(model):
    trained = {name for name, param in model.named_parameters() if param.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert sum("lora_" in name for name, _ in model.named_parameters()) == len(trained)


def test_the_loss_is_that_of_the_sentence_alone(model):
    tokens = lora.tables(4, seed=3)
    with torch.no_grad():
        found = lora.losses(model, tokens)
        logits = torch.log_softmax(model(input_ids=tokens).logits, -1)
    for row, loss, one in zip(tokens.tolist(), found.tolist(), logits, strict=True):
        start, end = row.index(lora.VOCABULARY.index("<text>")), row.index(lora.VOCABULARY.index("<end>"))
        expected = [-float(one[place - 1, row[place]]) for place in range(start + 1, end + 1)]
        assert len(expected) > 8
        assert loss == pytest.approx(np.mean(expected), rel=1e-4)
        assert set(row[end + 1 :]) <= {0}


def test_opacus_and_torch_func_give_the_same_gradients(model):
    tokens = lora.tables(6, seed=4)
    with torch.no_grad():  # LoRA starts with B = 0, where the gradients of A vanish
        for param in model.parameters():
            if param.requires_grad:
                param.add_(0.05 * torch.randn_like(param))
    functional = clipped_gradients(model, lora.loss, (tokens,), FlatClipping(0.1))
    wrapped = opacus.GradSampleModule(model)
    lora.losses(wrapped, tokens).mean().backward()
    samples = [param.grad_sample for param in model.parameters() if param.requires_grad]
    norms = torch.stack([sample.flatten(1).norm(dim=1) for sample in samples]).norm(dim=0)
    assert norms.min() > 0.1  # all of them are clipped
    for sample, total in zip(samples, functional.sums, strict=True):
        expected = torch.einsum("i...,i->...", sample, 0.1 / norms)
        np.testing.assert_allclose(total.numpy(), expected.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("gradients", ["opacus", "func"])
def test_the_loss_falls_and_the_run_is_recorded(gradients, tmp_path, capsys):
    arguments = [str(tmp_path), "--gradients", gradients, "--epochs", "2", "--examples", "400", "--eps", "8"]
    assert lora.main(arguments) == 0
    words = capsys.readouterr().out.split()
    before, after = float(words[3]), float(words[5])
    assert before == pytest.approx(np.log(len(lora.VOCABULARY)), abs=0.5)
    assert after < before - 0.2
    record = dm.RunRecord.load(tmp_path / "run.json")
    assert (record.steps, record.most_participations) == (20, 2)
    assert record.certificate == dm.Certificate.load(tmp_path / "certificate.json")


@pytest.mark.parametrize("more", [["muon"], ["muonbc"], ["sgd", "--denoise"]], ids=" ".join)
def test_other_rules_train_under_the_same_claim(more, tmp_path, capsys):
    arguments = [str(tmp_path), "--epochs", "2", "--examples", "400", "--eps", "8", "--optimizer", *more]
    assert lora.main(arguments) == 0
    words = capsys.readouterr().out.split()
    assert float(words[5]) < float(words[3]) - 0.1
    record = dm.RunRecord.load(tmp_path / "run.json")
    assert dm.verify(tmp_path / "run.json").ok
    assert (record.steps, record.most_participations) == (20, 2)
