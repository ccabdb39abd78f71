"""Central pre-training on public text: it learns, and the same seed gives the same model."""

import json
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.clients.batches import Example
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.pretraining import PretrainingConfig, pretrain, split_held_out

SPEC = ModelSpec(hidden=16, layers=1, heads=2, max_tokens=24)
LSTM = ModelSpec(name="awd-lstm", hidden=12, layers=2, embedding=8)
TEXT = [f"the {animal} sat on the {place} ." for animal in ("cat", "dog", "hen") for place in ("mat", "bed", "hay")]


def trained(seed: int) -> tuple[float, np.ndarray]:
    model = load_model(SPEC, 0)
    sentences = model.encode(TEXT * 4)
    perplexity = pretrain(model, sentences, sentences[:3], PretrainingConfig(epochs=10, batch_size=4, seed=seed))
    return perplexity, model.get_vector()


@pytest.mark.nightly
def test_it_learns_and_is_reproducible() -> None:
    perplexity, vector = trained(0)
    assert perplexity < 100  # the untrained model's is the vocabulary's size, 4,096
    np.testing.assert_array_equal(vector, trained(0)[1])
    assert not np.array_equal(vector, trained(1)[1])


def test_the_split_is_seeded_and_complete() -> None:
    sentences = [Example(np.array([i])) for i in range(50)]
    train, held_out = split_held_out(sentences, 0.1, 0)
    assert len(held_out) == 5
    assert sorted(int(s.tokens[0]) for s in train + held_out) == list(range(50))
    assert [s.tokens[0] for s in split_held_out(sentences, 0.1, 1)[1]] != [s.tokens[0] for s in held_out]


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ("--hidden 16 --layers 1 --heads 2 --max-tokens 24", SPEC),
        ("--model awd-lstm --hidden 12 --layers 2 --embedding 8", LSTM),
    ],
    ids=["gpt2", "awd-lstm"],
)
def test_the_command_makes_a_model_that_a_run_can_load(
    words: str, spec: ModelSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "public.txt", str(tmp_path / "model")
    text.write_text("\n".join(TEXT * 3), encoding="utf-8")
    assert main(["corpus", "pretrain", str(text), "--out", out, "--json", "--epochs", "1", *words.split()]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sentences"] + record["held_out_sentences"] == 27
    assert record["model"]["name"] == spec.name
    loaded, built = load_model(ModelSpec(name=out, max_tokens=24), 0), load_model(spec, 0)
    assert loaded.parameters.shapes() == built.parameters.shapes()
    assert not np.array_equal(loaded.get_vector(), built.get_vector())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing.txt", "--out", "new"], "missing.txt"),
        (["text.txt", "--out", "."], "new or empty"),
        (["text.txt", "--out", "new", "--epochs", "0"], "epochs is 0"),
        (["text.txt", "--out", "new", "--hidden", "15"], "multiple of it"),
        (["one.txt", "--out", "new"], "at least 2"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(TEXT), encoding="utf-8")
    Path("one.txt").write_text("alone\n", encoding="utf-8")
    assert main(["corpus", "pretrain", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert expected in error[-1]
    assert not Path("new").exists()
