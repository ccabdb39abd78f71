"""The page of runs: in a real browser it zooms, points, fits and asks nothing of a network; whole without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import fl_sim
from fl_sim.reporting.pages.charts import Axis, Line, coinciding, live_chart, style
from fl_sim.reporting.pages.html_page import _DARK, _LIGHT
from fl_sim.storage.run_folder import RunFolder
from tests.browser import NAMES, Tab, browser, chromium
from tests.fl_sim.conftest import AFTER_LAST_ROUND, GUARANTEE, MakeRun, finished, metrics_row, write_ledger

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>&amp;\u202e'
FIGURE = {"value": 2.4, "low": 2.3, "high": 2.5}
HELD_OUT = {
    "users": 4,
    "sentences": 40,
    "figures": {"bits_per_byte": FIGURE},
    "deciles": {"metric": "bits_per_byte", "values": [2.0] * 9},
    "by_sentences": [{"lowest": 4, "highest": 7, "users": 4, "bits_per_byte": FIGURE}],
    "by_mention": {"entity_tokens": {"bits_per_byte": FIGURE, "share": 0.2}},
}
BY_USER = {"predictions": [10.0, 20.0, 5.0, 8.0], "nats": [50.0, 90.0, 30.0, 41.0], "wrong": [8.0, 15.0, 4.0, 6.0]}


def write_run(folder: Path, strategy: str, rounds: int, **result: Any) -> Path:
    """A made-up run with everything that a page shows."""
    plan = {
        "strategy": strategy, "population": 946, "q_u": 1.0, "q_e": 0.5, "q_s": 0.05, "clip_norm": 0.5,
        "user_cap": 5.0, "noise_multiplier": 1.0, "rounds": rounds, "delta": 1e-5,
    }  # fmt: skip
    config = {"run": {"rounds": rounds}, "plan": plan, "corpus": {"fingerprint": "c0ffee"}}
    run = RunFolder.create(folder, config=config, environment={})
    for number in range(rounds + 1):
        norms = {"update_norm": 0.1, "noise_norm": 4.0 + number} if number else {}
        cohort = {"train_loss": 5.0 - 0.1 * number, "cohort_sentences": 90 + number} if number else {}
        run.append_metrics(metrics_row(strategy, number, rounds) | norms | cohort)
    write_ledger(run.path, rounds, GUARANTEE)
    head = {"ledger": json.loads((folder / "ledger.head.json").read_text()), "held_out": HELD_OUT}
    run.finish(finished(plan, rounds) | head | result)
    run.write_held_out_users(BY_USER)
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


def test_the_page_needs_no_network_and_is_whole_without_scripts(page: Path) -> None:
    text = page.read_text()
    assert page.stat().st_mode & 0o077 == 0
    markup = re.sub(r'<(style|script)>.*?</\1>|data-chart="[^"]*"', "", text, flags=re.DOTALL)
    tags = re.findall(r"<[a-z][^>]*>", markup)
    assert [tag for tag in tags if re.search(r"""\s(src|href|action)=(?!"data:,")""", tag)] == []
    assert re.findall(r"@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", text) == []
    pictures = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    drawn = [picture for picture in pictures if picture.findall("polyline")]
    assert len(drawn) >= 8
    assert text.count("<details>") >= len(re.findall('<figure class="live"', text)) >= 8
    for words in ("For the owner of the corpus", "15.02", "any user + any entity, δ = 1e-5", "2.40 (2.30 to 2.50)"):
        assert words in text
    assert "No line: C" in text


def test_names_and_warnings_are_text(page: Path) -> None:
    text = page.read_text()
    assert text.count("<script") == 1
    assert "<img" not in text
    assert "\u202e" not in text
    assert "onerror=alert(1)&gt;" in text


def test_the_browser_asks_nothing_and_complains_of_nothing(tab: Tab, page: Path) -> None:
    tab.requests.clear()
    tab.messages.clear()
    tab.open(page, 1100)
    assert tab.messages == []
    assert {address.partition(":")[0] for address in tab.requests} <= {"file", "data"}
    assert len([address for address in tab.requests if address.startswith("file")]) == 1
    assert tab.run("document.querySelectorAll('script, img, iframe, link[rel=stylesheet]').length") == 1
    assert tab.run("document.documentElement.classList.contains('scripted')")


def test_no_foreign_script_would_run(tab: Tab, page: Path, tmp_path: Path) -> None:
    """Should an escape be missing one day, the policy of the page stops the script."""
    changed = tmp_path / "page.html"
    changed.write_text(
        page.read_text().replace("<h2>Privacy</h2>", "<script>window.ran = 1</script><h2>Privacy</h2>", 1)
    )
    tab.open(changed, 1100)
    assert tab.run("window.ran === undefined && document.documentElement.classList.contains('scripted')")
    assert any("Content Security Policy" in message for message in tab.messages)


@pytest.mark.parametrize("width", [420, 1100])
def test_nothing_is_wider_than_the_screen(tab: Tab, page: Path, width: int) -> None:
    tab.open(page, width)
    assert tab.run("document.documentElement.scrollWidth") == width
    beyond = """[...document.querySelectorAll('body *')].filter((one) => !one.closest('.wide, svg') &&
        one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
    assert tab.run(beyond) == []
    sizes = tab.run("[...document.querySelectorAll('figure.live .picture > svg')].map((one) => one.clientWidth)")
    assert min(sizes) > 300
    assert max(sizes) <= width


def chart(script: str) -> str:
    """A script about the chart of ε: ``svg`` is its picture, ``box`` its place, ``ticks`` the words on its x axis."""
    return f"""(() => {{ const figure = document.getElementById('epsilon');
        const svg = figure.querySelector('.picture > svg');
        figure.scrollIntoView({{ block: 'center' }});
        const box = svg.getBoundingClientRect();
        const ticks = [...svg.querySelectorAll('text[text-anchor=middle]')].map((one) => one.textContent);
        {script} }})()"""


def test_pointing_shows_the_figures_of_all_lines_rounded_up(tab: Tab, page: Path) -> None:
    tab.open(page, 1100)
    assert tab.run(chart("return figure.querySelector('.tip').hidden"))
    x, y = tab.run(chart("return [box.right - 16, box.top + box.height / 2]"))
    tab.mouse("mouseMoved", x, y)
    tab.settle()
    said = tab.run(chart("return figure.querySelector('.tip').innerText"))
    assert "round 60" in said
    assert not tab.run(chart("return figure.querySelector('.tip').hidden"))
    tab.run(chart("svg.focus()"))
    for _ in range(3):
        tab.key("ArrowLeft")
    assert "round 57" in tab.run(chart("return figure.querySelector('.tip').innerText"))
    for _ in range(60):
        tab.key("ArrowLeft")
    for _ in range(12):
        tab.key("ArrowRight")
    said = tab.run(chart("return figure.querySelector('.tip').innerText"))
    assert "round 12" in said
    assert "A · first: ε 15.02" in said
    assert tab.run(chart("return figure.querySelector('.tip').getBoundingClientRect().right <= innerWidth"))


def test_zoom_by_dragging_by_buttons_and_back(tab: Tab, page: Path) -> None:
    tab.open(page, 1100)
    whole = tab.run(chart("return ticks"))
    assert whole[0] == "0"
    x, y, width = tab.run(chart("return [box.left, box.top + box.height / 2, box.width]"))
    tab.mouse("mouseMoved", x + 0.4 * width, y)
    tab.mouse("mousePressed", x + 0.4 * width, y, button="left", clickCount=1)
    tab.mouse("mouseMoved", x + 0.6 * width, y, button="left", buttons=1)
    tab.mouse("mouseReleased", x + 0.6 * width, y, button="left", clickCount=1)
    tab.settle()
    zoomed = [float(words) for words in tab.run(chart("return ticks.slice(0, -2)"))]
    assert 15 < min(zoomed) < max(zoomed) < 45
    tab.run(chart("svg.dispatchEvent(new MouseEvent('dblclick', { bubbles: true }))"))
    assert tab.run(chart("return ticks")) == whole
    tab.run(chart("figure.querySelector('[data-zoom=in]').click()"))
    assert tab.run(chart("return ticks")) != whole
    tab.run(chart("figure.querySelector('[data-zoom=all]').click()"))
    assert tab.run(chart("return ticks")) == whole


def test_a_name_hides_its_line_and_says_so(tab: Tab, page: Path) -> None:
    tab.open(page, 1100)
    count = chart("return svg.querySelectorAll('polyline').length")
    before = tab.run(count)
    tab.run(chart("figure.querySelector('.legend button').click()"))
    assert tab.run(count) == before - 1
    assert tab.run(chart("return figure.querySelector('.legend button').getAttribute('aria-pressed')")) == "false"


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_follows_the_system_and_its_button(tab: Tab, page: Path, dark: bool) -> None:
    tab.open(page, 1100, dark)
    paper = "getComputedStyle(document.body).backgroundColor"
    shades = ("rgb(13, 17, 23)", "rgb(255, 255, 255)")
    assert tab.run(paper) == shades[0 if dark else 1]
    tab.run("document.querySelector('button.theme').click()")
    assert tab.run(paper) == shades[1 if dark else 0]
    tab.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert tab.run(paper) == shades[1]
    assert tab.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    tab.call("Emulation.setEmulatedMedia", media="", features=[])


def test_every_chart_has_its_figures_as_a_table_behind_it(tab: Tab, page: Path) -> None:
    tab.open(page, 1100)
    rows = tab.run("""[...document.querySelectorAll('figure')].map((one) => [one.querySelectorAll('details td').length,
        one.querySelectorAll('details th[scope]').length])""")
    assert all(cells and heads for cells, heads in rows)
    named = tab.run("[...document.querySelectorAll('figure.live svg[role=img]')].every((one) => one.ariaLabel)")
    assert named


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("rules", [_LIGHT, _DARK], ids=["light", "dark"])
def test_text_and_lines_can_be_read_on_their_paper(rules: str) -> None:
    colours = dict(re.findall(r"--(\w+): (#\w{6})", rules))

    def contrast(first: str, second: str) -> float:
        high, low = sorted((luminance(colours[first]), luminance(colours[second])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for paper in ("paper", "card"):
        assert contrast("ink", paper) >= 7
        assert contrast("soft", paper) >= 4.5
        assert all(contrast(f"c{number}", paper) >= 3 for number in range(6))


def test_lines_differ_in_more_than_their_colour() -> None:
    looks = [style(number) for number in range(26)]
    assert len({(look["colour"], look["dash"], look["mark"]) for look in looks}) == 26
    first = looks[:6]
    assert all(len({look[part] for look in first}) == 6 for part in ("colour", "dash", "mark"))


def test_lines_that_coincide_are_named() -> None:
    points = ((0.0, 1.0, "1"), (1.0, 2.0, "2"))
    lines = [Line("A", 0, points), Line("B", 1, points), Line("C", 2, ((0.0, 1.0, "1"), (1.0, 1.5, "1.5")))]
    assert coinciding(lines) == ["A and B coincide"]
    assert "A and B coincide." in live_chart("x", "X", lines, Axis("round"), Axis("ε"), "")


def test_a_line_that_begins_like_another_is_named() -> None:
    points = tuple((float(number), float(number), str(number)) for number in range(4))
    assert coinciding([Line("A", 0, points), Line("B", 1, points[:2])]) == ["A and B coincide"]
    assert coinciding([Line("A", 0, points), Line("B", 1, points[:1])]) == []


@pytest.mark.parametrize("delta", [1e-5, 1e-6])
def test_utility_is_drawn_against_epsilons_of_one_statement_alone(make_run: MakeRun, delta: float) -> None:
    runs = [make_run("uedp", rounds=3, name="a"), make_run("uedp", rounds=3, name="b", delta=delta)]
    page = fl_sim.compare([run.path for run in runs]).page()
    assert ('id="tradeoff"' in page) == (delta == 1e-5)
    assert ("ε are not comparable" in page) == (delta != 1e-5)


def test_long_runs_are_thinned_and_keep_their_last_round() -> None:
    points = tuple((float(number), float(number), str(number)) for number in range(5001))
    text = live_chart("x", "X", [Line("A", 0, points)], Axis("round"), Axis("ε"), "")
    assert text.count("<tr>") < 210
    assert "<td>5000</td>" in text


def test_a_page_of_one_run_and_of_a_run_that_never_began(make_run: MakeRun, tmp_path: Path) -> None:
    alone = fl_sim.compare([make_run("uedp", rounds=2).path]).page()
    assert "A ·" not in alone
    assert "Settings that differ" not in alone
    empty = RunFolder.create(tmp_path / "empty", config={}, environment={})
    page = fl_sim.compare([empty.path]).page()
    assert "no round is recorded" in page.lower()
    assert "<figure" not in page
    assert AFTER_LAST_ROUND["epsilon_any"] == 15.02
