"""The page "Add a model": its code runs as it stands and is clipped exactly; a bad plug-in is refused in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fl_sim import plugins
from fl_sim.cli.main import main
from fl_sim.clients.errors import ModelError
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.storage.run_folder import RunFolder
from tests.clients.models.models_to_try import CLASSES, CONTEXT, shifted
from tests.data_prep.plug_ins import PAGE, imports_restored, install, page_section
from tests.tiny import command_line, tiny_corpus

CODE, CONFIGURATION = (
    re.search(rf"```{language}\n(.*?)```", page_section("Add a model"), flags=re.DOTALL)[1]  # type: ignore[index]
    for language in ("python", "toml")
)
NAME = "my_model:AverageOfWords"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the file of the page in it."""
    (tmp_path / "my_model.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "run.toml").write_text(CONFIGURATION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_used", [])
    with imports_restored("my_model", "bad_model", "future_model"):
        yield tmp_path


def run(here: Path, *more: str, **settings: object) -> list[str]:
    """The words of ``fl-sim run`` on a tiny corpus."""
    if not (here / "corpus").exists():
        tiny_corpus(here / "corpus")
    known = {"corpus.path": str(here / "corpus"), "out": str(here / "run"), "rounds": 2, "engine.name": "inline"}
    given = command_line(known | {k.replace("__", "."): v for k, v in settings.items()})
    return ["run", "run.toml", "--quiet", *given, *more]


@pytest.mark.nightly
def test_fl_sim_run_trains_it(here: Path) -> None:
    assert main(run(here, model__layers=3)) == 0
    folder = RunFolder.open(here / "run")
    result = folder.result or {}
    assert result["rounds"] == 2
    assert "model.layers has no effect: model.name is my_model:AverageOfWords." in result["warnings"]
    assert not any("model.hidden" in warning for warning in result["warnings"])
    perplexity = folder.metrics()["perplexity"]
    assert np.isfinite(perplexity).all()
    assert perplexity.nunique() == 3
    saved = {path.name for path in folder.model_dir.iterdir()}
    assert {"config.json", "model.safetensors", "spec.json", "tokenizer.json"} <= saved


@pytest.fixture
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's entry point, as if the package were installed."""
    (entry,) = re.findall(r'^    (\w+) = "(my_model:\w+)"$', PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    install(here, "my-model", "fl_sim.models", *entry)
    monkeypatch.syspath_prepend(str(here))
    return entry[0]


def test_an_entry_point_is_a_name_and_its_folders_come_back(here: Path, installed: str) -> None:
    (here / installed).mkdir()  # a registered name comes before a folder
    model = shifted(load_model(ModelSpec(name=installed, hidden=12, max_tokens=CONTEXT), 0))
    assert covered_layers(model) is not None  # the page says so
    by_path = load_model(ModelSpec(name=NAME, hidden=12, max_tokens=CONTEXT), 0)
    assert by_path.parameters.shapes() == model.parameters.shapes()
    model.save(here / "saved")
    again = load_model(ModelSpec(name=str(here / "saved"), max_tokens=CONTEXT), 1)
    np.testing.assert_array_equal(again.get_vector(), model.get_vector())
    with pytest.raises(ModelError, match="cannot load model"):
        load_model(ModelSpec(name=str(here / "saved")), 0, CLASSES)
    again.save(here / "again")
    np.testing.assert_array_equal(load_model(ModelSpec(name=str(here / "again")), 2).get_vector(), model.get_vector())
    assert json.loads((here / "again" / "config.json").read_text())["fl_sim_architecture"] == installed


def test_a_folder_names_no_code_by_import_path(here: Path) -> None:
    load_model(ModelSpec(name=NAME, hidden=12), 0).save(here / "saved")
    with pytest.raises(ModelError, match=r"of the architecture 'my_model:AverageOfWords'; allowed: small-gpt2-public"):
        load_model(ModelSpec(name=str(here / "saved")), 0)


def test_a_folder_comes_before_an_import_path(here: Path) -> None:
    (here / NAME).mkdir()
    with pytest.raises(ModelError, match=f"cannot load model '{NAME}': tried the local folder"):
        load_model(ModelSpec(name=NAME), 0)


RETURN = "return AveragesForNextWord(body, vocabulary.size) if output_layer else body"
BAD = {  # the code of a module, and what is said of it
    "no architecture": ("AverageOfWords = 3", "allowed: a subclass or an instance of fl_sim.clients.models.Arch"),
    "abstract": (CODE.replace("def build", "def built"), "cannot be made"),
    "raises in build": (CODE.replace("spec.hidden or 32", "spec.width"), "fails with Attribute"),
    "no module built": (CODE.replace(RETURN, "return 3"), "fails with AttributeError"),
    "wrong shape": (
        CODE.replace("self.output(self.body(batch))", "self.body(batch)"),
        "returns scores of shape (3, 7, 16); allowed: (3, 7, 4096)",
    ),
    "reads the padding": (CODE.replace("cumsum(dim=1)", "cumsum(dim=1).flip(1)"), "otherwise beside other sentences"),
    "sees other sentences": (
        CODE.replace("(sums /", "(sums.mean(dim=0, keepdim=True) + sums /"),
        "scores a sentence otherwise beside other sentences",
    ),
    "dropout": (CODE, "model.dropout is 0.5; allowed for 'bad_model:AverageOfWords': 0, because it draws no"),
    "adapters": (CODE, "model.lora_rank is 2; allowed for 'bad_model:AverageOfWords': 0"),
    "half precision": (CODE, "model.precision is 'bfloat16'; allowed for 'bad_model:AverageOfWords': float32"),
}
SETTINGS: dict[str, dict[str, object]] = {
    "dropout": {"model__dropout": 0.5},
    "adapters": {"model__lora_rank": 2},
    "half precision": {"model__precision": "bfloat16"},
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_plug_in_is_one_line(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = BAD[case]
    (here / "bad_model.py").write_text(code, encoding="utf-8")
    assert main(run(here, model__name="bad_model:AverageOfWords", **SETTINGS.get(case, {}))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fl-sim run: model")
    assert message in line
    assert not (here / "run").exists()


def test_a_model_that_reads_the_word_it_predicts_is_refused(here: Path) -> None:
    mean_of_all = "(sums[:, -1:] / batch.lengths.view(-1, 1, 1)).expand_as(sums)"
    code = CODE.replace("sums / (batch.positions + 1).unsqueeze(-1)", mean_of_all)
    code = code.replace(
        "self.embedding(batch.inputs).cumsum", "(self.embedding(batch.inputs) * batch.is_token.unsqueeze(-1)).cumsum"
    )
    (here / "future_model.py").write_text(code, encoding="utf-8")
    with pytest.raises(ModelError, match="reads the word that it predicts; allowed: the words before it"):
        load_model(ModelSpec(name="future_model:AverageOfWords", hidden=8), 0)
    load_model(ModelSpec(name="future_model:AverageOfWords", hidden=8), 0, CLASSES)  # a class may depend on all words
