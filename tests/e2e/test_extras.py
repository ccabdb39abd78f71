"""Each extra brings all that its documented use needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.processes import printed_by
from tests.extra_environments import python_with

RUN = "run bundled --rounds 1 --q-s 0.001 --engine inline --set evaluation.max_sentences=10 --quiet --out run"
PREPARE = "--text-column text --user-column author --quiet --out corpus"
STUDY = "method=federate", "privacy.epsilon=12", "data.name=toy-adult", "encoder.kind=mlp"
CORPUS = "corpus/manifest.json"
USES: dict[str, tuple[str, str]] = {
    "text": (RUN, "run/model/model.safetensors"),
    "representations": (f"represent run --set {' --set '.join(STUDY)} --out record.json", "record.json"),
    "tensorboard": (f"{RUN} --track tensorboard", "run/tensorboard"),
    "hf": (f"prepare hf --source raw --tagger rules {PREPARE}", CORPUS),
    "pii": (f"prepare csv --source raw/a.csv --tagger presidio {PREPARE}", CORPUS),
    "spacy-en": (f"prepare csv --source raw/a.csv --tagger spacy:en_core_web_sm {PREPARE}", CORPUS),
    "lora": (f"{RUN} --model small-gpt2 --set model.lora_rank=2", "run/model/adapter_model.safetensors"),
    "wandb": (f"{RUN} --track wandb", "run/wandb"),
    "mlflow": (f"{RUN} --track mlflow", "run/mlflow/mlflow.db"),
}
"""A command line for each extra, and what it makes."""


@pytest.mark.system
@pytest.mark.sample(3)
@pytest.mark.parametrize("extra", USES)
def test_an_extra_is_complete(extra: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    rows = "".join(f"Ada calls +1 202 555 01{number}.,user {number % 9}\n" for number in range(40, 99))
    (tmp_path / "raw" / "a.csv").write_text(f"text,author\n{rows}")
    words, made = USES[extra]
    printed_by(python_with(extra, tmp_path / "environment"), "-m", "fl_sim", *words.split(), folder=tmp_path)
    assert (tmp_path / made).exists()
    if made.endswith(".json"):
        assert json.loads((tmp_path / made).read_text())
