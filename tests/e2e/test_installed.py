"""An installed copy, wheel or editable, beside folders of our names, without the text packages, and with each extra."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import fl_sim
from tests import tiny
from tests.conftest import REPOSITORY
from tests.e2e.processes import printed_by
from tests.extra_environments import python_with

LINKS = ("clients", "conf", "data_prep", "strategies")
FILES = ("LICENSE", "README.md", "THIRD_PARTY.md", "pyproject.toml", "setup.py")
SOURCES = (*FILES, "MANIFEST.in", "fl_sim", *LINKS, "tests")
DATA = (
    "fl_sim/py.typed",
    "fl_sim/cli/template/gitignore",
    "fl_sim/cli/template/run.toml",
    "fl_sim/clients/assets/small-awd-lstm-public/model.safetensors",
    "fl_sim/clients/assets/small-gpt2-public/model.safetensors",
    "fl_sim/clients/assets/tokenizer/tokenizer.json",
    "fl_sim/conf/figures/fig2.toml",
    "fl_sim/conf/irc.toml",
    "fl_sim/data_prep/bundled/manifest.json",
    "fl_sim/data_prep/bundled/train.sentences.parquet",
    "fl_sim/data_prep/irc/README.md",
    "fl_sim/data_prep/irc/manifest.json",
    "fl_sim/data_prep/irc/train.sentences.parquet",
    "fl_sim/data_prep/models/en_fl_sim_ner/ner/model",
)
LARGEST = 24 * 2**20  # bytes of either distribution; the corpora and models that ship are most of it


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's sources, links as links: to build writes into them."""
    folder = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        path = REPOSITORY / name
        if path.is_dir():
            shutil.copytree(path, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(sources: Path) -> Callable[[str, Path, Path], Path]:
    """``built("wheel", sources, out)`` or ``"sdist"``: the file that setuptools makes, without a network."""

    def build(kind: str, source: Path, out: Path) -> Path:
        program = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
        out.mkdir()
        return out / printed_by(sys.executable, "-c", program, folder=source).splitlines()[-1]

    return build


@pytest.fixture(scope="module")
def wheel(built: Callable[..., Path], sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", sources, tmp_path_factory.mktemp("built") / "wheel")


def environment(folder: Path, *package: str | Path) -> Path:
    """A new virtual environment that has the packages of this one and an fl_sim of its own; its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    site = printed_by(
        programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder
    )
    # Only packages: an editable fl_sim of this environment is a .pth file, which is not read from there.
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site.strip()) / "packages.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--disable-pip-version-check")
    printed_by(*pip, *offline, *package, folder=folder)
    return programs


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A working folder with packages of the names of our folders, which fail when they are imported."""
    folder = tmp_path / "crowded"
    for name in LINKS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the working folder is imported')\n")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_it_works_beside_folders_of_the_same_names(
    kind: str, request: pytest.FixtureRequest, sources: Path, crowded: Path, tmp_path: Path
) -> None:
    package = ["--editable", sources] if kind == "editable" else [request.getfixturevalue("wheel")]
    programs = environment(tmp_path / "environment", *package)
    python, program = programs / "python", programs / "fl-sim"
    place = printed_by(python, "-c", "import fl_sim; print(fl_sim.__file__)", folder=crowded).strip()
    assert Path(place).is_relative_to(sources if kind == "editable" else tmp_path / "environment")
    assert printed_by(python, "-m", "fl_sim", "--version", folder=crowded).startswith("fl-sim ")
    stats = json.loads(printed_by(program, "corpus", "stats", "bundled", "--json", folder=crowded))
    assert stats["splits"]["train"]["users"] > 1000
    corpus = tiny.tiny_corpus(tmp_path / "tiny")
    words = ["--corpus", corpus, "--engine", "inline", "--rounds", "1", *tiny.command_line(tiny.MODEL)]
    result = json.loads(printed_by(program, "run", *words, "--json", "--quiet", "--out", "here", folder=crowded))
    assert (result["rounds"], result["folder"]) == (1, str(crowded / "here"))


@pytest.mark.system
def test_the_wheel_has_files_and_all_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    names = {file.filename for file in files}
    assert not [file.filename for file in files if (file.external_attr >> 16) & 0o170000 == 0o120000], "no links"
    assert {name for name in names if name.startswith("fl_sim/")} >= set(DATA)
    assert {name.partition("/")[0] for name in names} == {"fl_sim", f"fl_sim-{fl_sim.__version__}.dist-info"}
    checkout = {path.relative_to(REPOSITORY) for link in LINKS for path in (REPOSITORY / link).rglob("*.py")}
    assert {f"fl_sim/{path.as_posix()}" for path in checkout} <= names


@pytest.mark.system
@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_a_copy_that_lost_its_links_is_not_built(kind: str, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "fl_sim").mkdir()
    shutil.copy(REPOSITORY / "fl_sim" / "__init__.py", tmp_path / "fl_sim")
    for name in LINKS:  # as zipfile unpacks a link, and as git does with core.symlinks=false
        (tmp_path / "fl_sim" / name).write_text(f"../{name}")
    program = f"from setuptools import build_meta; build_meta.build_{kind}('built')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (refusal,) = done.stderr.splitlines()
    assert refusal.startswith(
        "fl_sim/clients, fl_sim/conf, fl_sim/data_prep, fl_sim/strategies: no links to the folders"
    )
    assert refusal.endswith("git config core.symlinks true && git checkout -- fl_sim")


@pytest.mark.system
def test_a_type_checker_elsewhere_finds_an_editable_installation(sources: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    programs = environment(tmp_path / "environment", "--editable", sources)
    (tmp_path / "use.py").write_text("import fl_sim.strategies.uedp\nimport fl_sim.config\n")
    mypy = (sys.executable, "-m", "mypy", "--python-executable", programs / "python", "--cache-dir", os.devnull)
    printed_by(*mypy, "--follow-imports", "skip", "use.py", folder=tmp_path)  # modules are found, and not read


@pytest.mark.nightly
def test_a_source_distribution_makes_the_same_wheel(
    built: Callable[..., Path], sources: Path, wheel: Path, tmp_path: Path
) -> None:
    packed = built("sdist", sources, tmp_path / "sdist")
    with tarfile.open(packed) as archive:
        assert not [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
        assert tops <= {*SOURCES, "PKG-INFO", "setup.cfg", "fl_sim.egg-info"} - {"tests"}, "no tests, results or runs"
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("fl_sim-*/")
    again = built("wheel", unpacked, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert contents_of(first) == contents_of(second)
    assert max(packed.stat().st_size, wheel.stat().st_size) < LARGEST


def contents_of(archive: zipfile.ZipFile) -> dict[str, int]:
    """The checksum of every file."""
    return {file.filename: file.CRC for file in archive.infolist()}


@pytest.mark.system
def test_an_installed_copy_makes_a_project(wheel: Path, tmp_path: Path) -> None:
    program = environment(tmp_path / "environment", wheel) / "fl-sim"
    printed_by(program, "new", "chats", folder=tmp_path)
    reading = ["--source", "letters.mbox", "--tagger", "rules", "--out", "corpora/letters"]
    printed_by(program, "prepare", "mailbox_reader:MailboxReader", *reading, folder=tmp_path / "chats")
    words = ["--corpus", "corpora/letters", "--rounds", "1", "--set", "privacy.strategy=length_weighted:LengthWeighted"]
    words += tiny.command_line({**tiny.MODEL, "model.name": "small-gpt2"})
    result = json.loads(printed_by(program, "run", "run.toml", *words, "--json", "--quiet", folder=tmp_path / "chats"))
    assert result["rounds"] == 1
    assert result["epsilon_any"] <= 8.0


PROGRAM = """
import sys
from pathlib import Path
from fl_sim.cli.main import main
from tests.fl_sim.flower.apps import nodes_of, train

folder = Path(sys.argv[1])
_, strategy = train(folder / "run", nodes_of(3), rounds=2)
print(f"{strategy.epsilon():.6f}")
assert main(["account", "ledger", str(folder / "run"), "--json"]) == 0
print("what needs the text packages:", file=sys.stderr)
sys.exit(main(["run", "--corpus", "bundled"]))
"""


@pytest.mark.system
def test_a_flower_app_is_private_and_accounted_for_and_what_needs_the_text_packages_says_so(tmp_path: Path) -> None:
    python = python_with("", tmp_path / "environment", "pytest")
    done = subprocess.run(
        [python, "-c", PROGRAM, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    epsilon, figures = done.stdout.split("\n", 1)
    assert f'"epsilon_user": {epsilon[:4]}' in figures
    refusal = done.stderr.partition("what needs the text packages:\n")[2]
    assert re.fullmatch(r"fl-sim run: \w+ is not installed: pip install 'fl-sim\[text\]'\n", refusal), done.stderr


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
