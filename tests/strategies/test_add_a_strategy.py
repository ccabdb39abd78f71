"""The code of docs/extending.md, run as the page says, and strategies that are refused."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_sim import plugins
from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.reporting.report import full_report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies import registry
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.messages import MessageError, rule_from_json
from tests.data_prep.plug_ins import imports_restored, page_section, write_page_code
from tests.tiny import MODEL, tiny_corpus

NAME = "my_strategy:CoordinateWise"
Capture = pytest.CaptureFixture[str]
Refusal = Callable[..., str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a working directory with the page's module, its configuration and a corpus."""
    write_page_code("Add a strategy", tmp_path)
    page = page_section("Add a strategy")
    configuration = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "run.toml").write_text(configuration, encoding="utf-8")
    tiny_corpus(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_used", [])
    monkeypatch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
    registry.load_strategy.cache_clear()
    with imports_restored("my_strategy", "no_event", "bad"):
        yield tmp_path
    registry.load_strategy.cache_clear()


def words_of(*more: str, out: str = "run", engine: str = "inline") -> list[str]:
    settings = {"corpus.path": "tiny", "engine.name": engine, "out": out, **MODEL}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["run", "run.toml", *words, *more, "--quiet", "--json"]


def train(*more: str, **places: str) -> int:
    return main(words_of(*more, **places))


def without_event(folder: Path) -> str:
    """Write the page's strategy without its event, and return the name."""
    code = (folder / "my_strategy.py").read_text(encoding="utf-8")
    code, cuts = re.subn(r"\n    def event\(self\):\n.*?\n(?=\S|\Z)", "\n", code, flags=re.DOTALL)
    assert cuts == 1
    (folder / "no_event.py").write_text(code, encoding="utf-8")
    return "no_event:CoordinateWise"


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page(capsys: Capture) -> None:
    assert train() == 0
    result = json.loads(capsys.readouterr().out)
    event, n = RoundEvent("user_level", 1.0, q_u=0.5), float(result["user_sentences"])
    assert result["epsilon_user"] == pytest.approx(epsilon(event, Adjacency(n), 3, 1e-5), rel=1e-6)
    entity = ContributionBound(**result["reach"]["p95"])
    assert result["epsilon_user_entity_p95"] == pytest.approx(epsilon(event, Adjacency(n, entity), 3, 1e-5), rel=1e-6)
    run = RunFolder.open("run")
    assert (run.metrics()["failed_nodes"].iloc[1:] == 0).all()
    assert run.config["plan"]["strategy"] == NAME
    assert run.config["plan"]["options"] == {"spread": 2.0}
    assert run.config["run"]["privacy"]["spread"] == 2.0
    assert run.config["strategy_origin"].keys() == {"path", "module_sha256"}
    text = full_report_text(read_facts(run))
    assert "Protects    one user: all of the user's sentences" in text
    assert f"{NAME}: q_u 0.5, user clip β 0.5, noise multiplier z 1 (noise 0.5 on the sum)" in " ".join(text.split())


@pytest.mark.system
def test_the_bound_holds_and_the_option_is_read(folder: Path) -> None:
    """A user moves the average by at most β/U, and by at most ``spread``·β/U at a small spread."""
    plain = ["--set", "server.optimizer=sgd", "--set", "server.learning_rate=1", "--set", "rounds=1"]
    plain += ["--set", "privacy.q_u=1", "--z", "0.05"]
    norms = {}
    for spread in ("0.01", "100"):
        assert train(*plain, "--set", f"privacy.spread={spread}", out=spread) == 0
        norms[spread] = float(RunFolder.open(spread).metrics()["update_norm"].iloc[-1])
    assert 0 < norms["0.01"] <= 0.01 * 0.5 * 1.001
    assert norms["0.01"] < norms["100"] <= 0.5 * 1.001


@pytest.mark.system
def test_another_version_of_the_file_does_not_go_on(folder: Path, capsys: Capture) -> None:
    assert train() == 0
    result = json.loads((folder / "run" / "result.json").read_bytes()) | {"stopped": "interrupted"}
    (folder / "run" / "result.json").write_text(json.dumps(result), encoding="utf-8")
    with (folder / "my_strategy.py").open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    capsys.readouterr()
    assert main(["resume", "run"]) == 2
    assert f"the code of privacy.strategy {NAME} has changed since the run began" in capsys.readouterr().err


# --- without an event -------------------------------------------------------------------------------------------------


def test_without_an_event_nothing_is_guaranteed(folder: Path, capsys: Capture) -> None:
    assert train("--strategy", without_event(folder)) == 0
    result = json.loads(capsys.readouterr().out)
    assert {value for name, value in result.items() if name.startswith("epsilon_")} == {"inf"}
    assert "no_event:CoordinateWise guarantees nothing: its ε is infinite." in result["warnings"]
    run = RunFolder.open("run")
    assert (run.metrics()["epsilon_user"].iloc[1:] == math.inf).all()
    assert "no guarantee (ε = ∞)" in full_report_text(read_facts(run))
    assert read_facts(run).record()["guarantee"] is False


@pytest.mark.system
def test_without_an_event_a_ledger_composes_to_infinity(folder: Path, capsys: Capture) -> None:
    assert train("--strategy", without_event(folder), out="nothing") == 0
    assert train("--set", "seed=1", out="guaranteed") == 0
    capsys.readouterr()
    assert main(["account", "ledger", "--json", "nothing", "guaranteed", "--delta", "1e-5"]) == 0
    captured = capsys.readouterr()
    assert {value for key, value in json.loads(captured.out).items() if key.startswith("epsilon")} == {"inf"}
    assert "3 releases have no guarantee" in captured.err
    assert main(["entities", "run", "nothing"]) == 2
    assert "no_event:CoordinateWise guarantees nothing" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["target_epsilon", "epsilon_budget"])
def test_without_an_event_no_epsilon_can_be_met(folder: Path, refusal: Refusal, flag: str) -> None:
    words = words_of("--strategy", without_event(folder), "--set", f"privacy.{flag}=2")
    assert f"privacy.{flag} is 2.0; allowed: nothing under no_event:CoordinateWise" in refusal(*words)


# --- refusals ---------------------------------------------------------------------------------------------------------

BAD = """
from dataclasses import dataclass, replace
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.client_rules import ClientRule, ClippedGradients
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.privacy_config import GaussianSumConfig, PrivacyConfig
class NoRule(Mechanism):
    pass
@dataclass(frozen=True, kw_only=True)
class Unregistered(ClientRule):
    pass
class NoNodes(Mechanism):
    def client_rule(self, clip_norm): return Unregistered(**self.bounds(clip_norm))
class BadConfig(NoNodes):
    Config = dict
class OneKey(PrivacyConfig):
    spread: float = 4.0
class NoDataclass(NoNodes):
    Config = OneKey
    spread: float = 4.0
def local():
    @dataclass(frozen=True, kw_only=True)
    class Hidden(ClientRule):
        pass
    return Hidden
class NoPath(Mechanism):
    def client_rule(self, clip_norm): return local()(**self.bounds(clip_norm))
@dataclass(frozen=True, kw_only=True)
class Holds(ClientRule):
    what: object
class NoJson(Mechanism):
    def client_rule(self, clip_norm): return Holds(**self.bounds(clip_norm), what=object())
class Longer(Mechanism):
    def client_rule(self, clip_norm):
        return ClippedGradients(**self.bounds(clip_norm) | {"user_clip": 10 * clip_norm}, sentence_clip=clip_norm)
    def event(self): return RoundEvent("user_level", self.noise_multiplier, q_u=self.q_u)
class NoEvent(Longer):
    def event(self): return {"strategy": "user_level"}
class Good(Mechanism):
    Config = GaussianSumConfig
    defaults = Mechanism.defaults | {"user_cap": 4.0}
    items_per_user = 4.0
    def client_rule(self, clip_norm): return ClippedGradients(**self.bounds(clip_norm), sentence_clip=clip_norm)
    def event(self): return RoundEvent("uedp", self.noise_multiplier, self.q_u, self.q_e, self.q_s, self.user_cap)
class Quieter(Good):
    def noise_std(self, clip_norm): return super().noise_std(clip_norm) / 10
class Unclipped(Good):
    def client_rule(self, clip_norm): return ClippedGradients(**self.bounds(clip_norm))
class MoreUsers(Good):
    def event(self): return RoundEvent("uedp", self.noise_multiplier, self.q_u / 10, user_cap=self.user_cap)
class MoreEntities(Good):
    def event(self): return RoundEvent("uedp", self.noise_multiplier, self.q_u, q_e=0.5, user_cap=self.user_cap)
class MoreSentences(Good):
    def event(self): return RoundEvent("uedp", self.noise_multiplier, self.q_u, q_s=0.1, user_cap=self.user_cap)
class MoreVotes(Good):
    items_per_user = 1.0
@dataclass(frozen=True, kw_only=True)
class Unrecorded(Good):
    louder: float = 10.0
    @classmethod
    def own_fields(cls, settings): return {"louder": 1.0}
    def event(self): return RoundEvent("user_level", self.louder * self.noise_multiplier, q_u=self.q_u)
class OfTheCorpus(Good):
    @classmethod
    def from_settings(cls, settings):
        return replace(super().from_settings(settings), clip_norm=settings.corpus.sentences)
number = 3
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:Strategy", r"strategy 'nowhere:Strategy' cannot be imported \(No module named 'nowhere'\)"),
        ("bad:Missing", r"'bad:Missing' cannot be imported \(module 'bad' has no attribute 'Missing'\)"),
        ("bad:number", "'bad:number' is 3; allowed: a subclass of fl_sim.strategies.mechanism.Mechanism"),
        ("bad:NoRule", "'bad:NoRule' is .*; allowed: a subclass of .* with a client_rule"),
        ("bad:BadConfig", "'bad:BadConfig' is .*; allowed: .* one of PrivacyConfig as Config"),
        ("bad:NoDataclass", "'bad:NoDataclass' is .*; allowed: .* with @dataclass if it has fields"),
        ("bad:NoNodes", "is bad:NoNodes, but its client rule is a Unregistered; allowed: one registered with add_"),
        ("bad:NoPath", "is bad:NoPath, but its client rule is malformed or unknown"),
        ("bad:NoJson", "is bad:NoJson, but its client rule Holds cannot be sent"),
        (
            "bad:Longer",
            "but its client rule has user_clip 10; allowed by its event and noise: at most 1",
        ),
        ("bad:Quieter", "but its client rule has user_clip 4; allowed by its event and noise: at most 0.4"),
        ("bad:Unclipped", "but its client rule has sentence_clip inf; allowed by its event and noise: at most 1"),
        ("bad:MoreUsers", "but its cohorts have q_u 1; allowed by its event and noise: at most 0.1"),
        ("bad:MoreEntities", "but its client rule has q_e 1; allowed by its event and noise: at most 0.5"),
        ("bad:MoreSentences", "but its client rule has q_s 1; allowed by its event and noise: at most 0.1"),
        ("bad:MoreVotes", "but its users vote as 4; allowed by its event and noise: at most 1"),
        (
            "bad:OfTheCorpus",
            "is bad:OfTheCorpus; allowed: settings that depend on no counts of the corpus, or",
        ),
        ("bad:Unrecorded", "is bad:Unrecorded, whose record has another event"),
        ("bad:NoEvent", "is bad:NoEvent; allowed: one whose event is a RoundEvent or None, not a dict"),
        (
            "coordinate",
            "privacy.strategy is 'coordinate'; allowed: uedp, user_level, published, noiseless, or an import",
        ),
    ],
)
def test_bad_strategies_are_refused(folder: Path, refusal: Refusal, name: str, words: str) -> None:
    (folder / "bad.py").write_text(BAD, encoding="utf-8")
    own = "[privacy]\nclip_quantile = 0.5\n" if name == "bad:MoreVotes" else ""
    (folder / "run.toml").write_text(f"rounds = 1\n{own}", encoding="utf-8")
    assert re.search(words, refusal(*words_of("--strategy", name)))
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"spread": -1.0}, r"^privacy\.spread is -1\.0; allowed: a number above 0$"),
        ({"spread": "wide"}, r"^privacy\.spread is 'wide'; allowed: a number above 0$"),
        ({"width": 2}, r"^'privacy\.width' is not a configuration key; .*known in privacy: strategy, .*, spread$"),
    ],
)
def test_impossible_own_keys_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_mapping({"privacy": {"strategy": NAME, **keys}})


@pytest.mark.parametrize(("key", "value"), [("q_e", 0.5), ("q_s", 0.5), ("user_cap", 2.0)])
def test_what_the_strategy_fixes_is_refused(refusal: Refusal, key: str, value: float) -> None:
    line = refusal(*words_of("--set", f"privacy.{key}={value}"))
    assert f"privacy.{key} is {value}; allowed: 1 under {NAME}" in line


def test_keys_of_other_strategies_are_refused(refusal: Refusal) -> None:
    line = refusal(*words_of("--set", "privacy.clip_quantile=0.5"))
    assert f"privacy.clip_quantile is 0.5 and privacy.strategy is {NAME}; allowed: with uedp or user_level only" in line


def test_a_run_whose_strategy_is_gone_is_still_reported(folder: Path, capsys: Capture) -> None:
    assert train() == 0
    (folder / "my_strategy.py").unlink()
    sys.modules.pop("my_strategy")
    registry.load_strategy.cache_clear()
    capsys.readouterr()
    assert main(["report", "run"]) == 0
    text = capsys.readouterr().out
    assert "Protects    unknown" in text
    assert "the ledger cannot be read here" in text
    assert main(["account", "ledger", "run", "--delta", "1e-5"]) == 2
    assert "cannot be imported (No module named 'my_strategy')" in capsys.readouterr().err
    ledger = Path("run/ledger.jsonl")
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    assert main(["report", "run"]) == 2
    assert "is cut off" in capsys.readouterr().err


SHIPPED = '{"class": "fl_sim.strategies.client_rules:ClippedGradients", "fields": %s}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"class": "nowhere:Rule", "fields": {}}',
        '{"class": "pathlib:Path", "fields": {}}',
        '{"class": "path", "fields": {}}',
        SHIPPED % '{"q_e": 1.0}',
        SHIPPED % '{"q_e": 1.0, "q_s": 0.0, "user_clip": 1.0}',
        SHIPPED % '{"q_e": 1.0, "q_s": 1.0, "user_clip": "x"}',
        SHIPPED % '{"q_e": 1.0, "q_s": 1.0, "user_clip": 1.0, "vote": {"quantile": 0.5}}',
    ],
)
def test_a_client_rule_that_is_unknown_or_malformed_is_one_line(text: str) -> None:
    with pytest.raises(MessageError, match="client rule is malformed or unknown") as caught:
        rule_from_json(text)
    assert "\n" not in str(caught.value)
