"""The page of runs: it stands alone, runs no script, fits a screen of any width, and escapes every name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fl_sim
from fl_sim.reporting import plots, run_page
from fl_sim.storage.run_folder import RunFolder
from tests.browser import NAMES, Tab, browser, chromium
from tests.fl_sim.auditing.leakage.test_leak_page import pictures
from tests.fl_sim.conftest import MakeRun, ended_with, made_run, rewritten
from tests.fl_sim.reporting.test_plots import HELD_OUT

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>&amp;\u202e'
BY_USER = {"predictions": [10.0, 20.0, 5.0, 8.0], "nats": [50.0, 90.0, 30.0, 41.0], "wrong": [8.0, 15.0, 4.0, 6.0]}


def write_run(folder: Path, strategy: str, rounds: int, **result: Any) -> Path:
    """A made-up run with everything that a page shows."""

    def with_all(row: dict[str, Any]) -> dict[str, Any]:
        norms = {"update_norm": 0.1, "noise_norm": 4.0 + row["round"]}
        cohort = {"train_loss": 5.0 - 0.1 * row["round"], "cohort_sentences": 90 + row["round"]}
        return row | (norms | cohort if row["round"] else {})

    content = {"held_out": HELD_OUT} | result
    run = made_run(folder.parent, strategy, name=folder.name, rounds=rounds, result=content, corpus="c0ffee")
    rewritten(run, with_all).write_held_out_users(BY_USER)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    warnings = {"warnings": [HOSTILE]}
    corpus = {"corpus": {"name": HOSTILE, "users": 9, "sentences": 90, "not_looked_for": [HOSTILE]}}
    runs = [
        write_run(folder / "first", "uedp", 12),
        write_run(folder / ("bad " + HOSTILE.replace("/", "")), "uedp", 12, **warnings, **corpus),
        write_run(folder / "no_noise", "noiseless", 6),
        write_run(
            folder / "a_name_without_any_place_to_break_it_as_people_give_to_their_run_folders", "user_level", 60
        ),
    ]
    return fl_sim.compare(runs).save(folder / "page.html")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if chromium() is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)})")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_the_page_needs_no_network_and_runs_no_script(page: Path) -> None:
    text = page.read_text()
    assert page.stat().st_mode & 0o077 == 0
    tags = re.findall(r"<[a-z][^>]*>", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
    assert [tag for tag in tags if re.search(r"""\s(src|href|action|on\w+)=(?!"(data:,|#))""", tag)] == []
    assert re.findall(r"<script|@import|url\((?!#)|https?://(?!www\.w3\.org/(2000/svg|1999/xlink)\")", text) == []
    assert "default-src 'none'" in text
    assert len(pictures(text)) == text.count("<figure") == text.count("<details>") >= 10
    for words in ("For the owner of the corpus", "15.02", "any user + any entity, δ = 1e-5", "2.00 (1.90 to 2.10)"):
        assert words in text
    assert "C · no_noise: no guarantee (ε = ∞)" in text


def test_names_and_warnings_are_text(page: Path) -> None:
    text = page.read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "onerror=alert(1)&gt;" in text
    drawn = [text for picture in pictures(text) for text in picture.itertext()]
    assert any("onerror" in words for words in drawn)  # in a legend, escaped


@pytest.mark.parametrize(("width", "dark"), [(420, True), (1200, False)])
def test_the_page_fits_the_screen_and_asks_nothing(tab: Tab, page: Path, width: int, dark: bool) -> None:
    tab.requests.clear()
    tab.messages.clear()
    tab.open(page, width, dark)
    assert tab.messages == []
    assert len([address for address in tab.requests if not address.startswith("data:")]) == 1
    assert tab.run("document.documentElement.scrollWidth") == width
    beyond = """[...document.querySelectorAll('body *')].filter((one) => !one.closest('.wide, svg') &&
        one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
    assert tab.run(beyond) == []
    assert tab.run("Math.min(...[...document.querySelectorAll('figure svg')].map((one) => one.clientWidth))") > 300
    assert tab.run("Math.max(...[...document.querySelectorAll('figure')].map((one) => one.clientWidth))") <= 420
    cut = """[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth + 1)
        .map((one) => getComputedStyle(one).backgroundImage.split('linear-gradient').length)"""
    assert set(tab.run(cut)) <= {5}  # a shadow at the side where a table goes on
    paper = tab.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    ink = tab.run("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert ink == tab.run("getComputedStyle(document.body).color")


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_can_be_read_on_their_paper(scheme: str) -> None:
    style = (Path(run_page.__file__).parent / "pages" / "page.css").read_text()
    rules = style[style.index(f"color-scheme: {scheme}") :].partition("}")[0]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", rules))

    def contrast(first: str, second: str) -> float:
        high, low = sorted((luminance(colours[first]), luminance(colours[second])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    used = re.findall(r"var\(--(c\d)\)", " ".join(plots.THEME.values()))
    assert len(used) == 6
    for paper in ("paper", "card"):
        assert contrast("ink", paper) >= 7
        assert contrast("soft", paper) >= 4.5
        assert all(contrast(name, paper) >= 3 for name in used)


@pytest.mark.parametrize(("delta", "of_epsilon"), [(1e-5, " against ε, δ = 1e-5"), (1e-6, "")])
def test_a_page_begins_with_utility_against_epsilons_of_one_statement_alone(
    make_run: MakeRun, delta: float, of_epsilon: str
) -> None:
    runs = [make_run("uedp", rounds=3, name="a"), make_run("uedp", rounds=3, name="b", delta=delta)]
    begin, _, rest = fl_sim.compare([run.path for run in runs]).page().partition("<h2>Privacy</h2>")
    assert re.findall("<h3>(.*?)</h3>", begin) == [f"Held-out perplexity{of_epsilon}"]
    assert "perplexity against ε" not in rest
    assert ("ε are not comparable" in begin) == (not of_epsilon)


def figures_of(page: str) -> list[tuple[str, str]]:
    return re.findall('<p class="big">(.*?)</p><p>(.*?)</p>', page[: page.index("<h2>Privacy</h2>")])


def test_the_page_begins_with_epsilon_utility_time_and_their_chart(make_run: MakeRun) -> None:
    late = ended_with(make_run("uedp", rounds=3, name="late"), perplexity=None)
    page = fl_sim.compare([make_run("uedp", rounds=3).path, late.path, make_run("noiseless", rounds=3).path]).page()
    any_entity = "any user + any entity, δ\u00a0=\u00a01e\u20115"
    time = ("6 s", "for 3 rounds")
    assert figures_of(page) == [
        ("ε 15.02", any_entity), ("655.0", "held-out perplexity; 4,000.0 at the start"), time,
        ("ε 15.02", any_entity), ("759.3", "held-out perplexity after round 2; 4,000.0 at the start"), time,
        ("ε ∞", "no guarantee"), ("318.0", "held-out perplexity; 4,000.0 at the start"), time,
    ]  # fmt: skip
    unbounded = ended_with(make_run("user_level", rounds=3), epsilon_any=math.inf)
    (shown, *_) = figures_of(fl_sim.compare([unbounded.path]).page())
    assert shown == ("ε ∞", f"no guarantee for {any_entity}")
    begin = page[: page.index("<h2>Privacy</h2>")]
    assert "ε, any user + any entity" in begin
    assert begin.count("uedp, 3 of 3 rounds, finished") == 2


def test_a_page_of_one_run_and_of_a_run_that_never_began(make_run: MakeRun, tmp_path: Path) -> None:
    alone = fl_sim.compare([make_run("uedp", rounds=2).path]).page()
    assert "A ·" not in alone
    assert "Settings that differ" not in alone
    empty = RunFolder.create(tmp_path / "empty", config={}, environment={})
    page = fl_sim.compare([empty.path]).page()
    assert "no round is recorded" in page.lower()
    assert "<figure" not in page
    assert figures_of(page) == [
        ("no ε", "no round is recorded"), ("–", "no utility is recorded"), ("–", "no time is recorded"),
    ]  # fmt: skip
