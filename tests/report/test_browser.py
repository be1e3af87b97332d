"""The page in a real browser: it draws, plays, filters, follows a run, and lets no completion do anything."""

from __future__ import annotations

import threading

import pytest
from page_runs import HOSTILE, rows_of, write_run, write_samples

from browser import Browser, find_browser
from dtm.config import MiniConfig
from dtm.report.page.data import PageRun
from dtm.report.page.write import page_of, write_page
from dtm.report.watch import PageServer

FOUND = find_browser()
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="no Chromium on PATH: apt-get install chromium to test pages in a browser"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for all tests."""
    found = Browser(str(FOUND), tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def test_the_page_of_a_run_draws_its_curves_without_errors_or_requests(browser, finished):
    url = finished.folder.page.as_uri()
    browser.open(url)
    assert browser.problems() == []
    assert browser.requests() == [url]
    assert browser.run("document.getElementById('verdict').textContent").endswith(".")
    points = browser.run("document.querySelectorAll('[data-chart=reward] circle.point').length")
    assert points == len(finished.events("evaluation"))
    curve = browser.run("document.querySelector('[data-chart=loss] polyline').getAttribute('points')")
    assert len(curve.split()) == 8
    assert "NaN" not in browser.run("document.getElementById('main').outerHTML")
    names = browser.run("[...document.querySelectorAll('main section')].map((one) => one.id)")
    assert {"curves", "movie", "samples", "moved", "rewards", "phases", "numbers", "asked"} <= set(names)


def test_curves_are_read_with_the_keyboard_and_against_other_axes(browser, finished):
    browser.open(finished.folder.page.as_uri())
    browser.run("document.querySelector('[data-chart=reward] svg').focus()")
    browser.press("Home")
    spoken = browser.run("document.querySelector('[data-chart=reward] output').textContent")
    assert spoken.startswith("Optimiser steps 0: ")
    before = browser.run("document.querySelector('[data-chart=reward] polyline').getAttribute('points')")
    choose(browser, "axis", "seconds")
    assert (
        browser.run("document.querySelector('[data-chart=reward] polyline').getAttribute('points')") != before
    )
    label = browser.run("document.querySelector('[data-chart=reward] svg').getAttribute('aria-label')")
    assert label.startswith("Reward against minutes.")


def test_the_movie_plays_and_ends_with_the_final_text(browser, finished):
    browser.open(finished.folder.page.as_uri())
    shown = "[...reel.querySelectorAll('.token:not(.masked)')].map((token) => token.textContent)"
    texts = f"[...document.querySelectorAll('.reel')].map((reel) => {shown}.filter(Boolean).join(' '))"
    masks = "document.querySelectorAll('.token.masked').length"
    browser.run("document.getElementById('scrub').value = 0")
    browser.run("document.getElementById('scrub').dispatchEvent(new Event('input'))")
    assert browser.run(texts) == ["", ""]
    browser.run("document.getElementById('forward').click()")
    assert browser.run("document.querySelectorAll('.token.new').length") >= 2
    left = browser.run(masks)
    browser.run("document.getElementById('back').click()")
    assert browser.run(masks) > left
    browser.run("document.getElementById('play').click()")
    browser.wait("document.getElementById('play').textContent === 'Play'")
    replays = browser.run(
        "(() => { const run = JSON.parse(document.getElementById('data').textContent).runs[0];"
        "const movie = run.movies[document.getElementById('movie-prompt').value];"
        "return [movie.replays[0], movie.replays.at(-1)].map((one) => one.completion); })()"
    )
    assert browser.run(texts) == replays
    assert browser.run(masks) == 0


def test_the_marks_of_mazes_are_explained_below_them(browser, finished):
    browser.open(finished.folder.page.as_uri())
    marks = "document.querySelectorAll('#movie .marks span, #samples .marks span')"
    texts = browser.run(f"[...{marks}].map((one) => one.lastChild.textContent)")
    assert texts == ["start", "goal", "a wall, or a jump from the previous cell"] * 2
    paint = "(where, kind) => getComputedStyle(document.querySelector(`${where} .${kind}`)).fill"
    for kind in ("start", "goal"):
        assert browser.run(f"({paint})('.marks', '{kind}') === ({paint})('.drawing', '{kind}')")
    assert browser.run(f"({paint})('.marks', 'start') !== ({paint})('.marks', 'goal')")


def test_a_token_tells_its_confidence_and_alternatives_by_keyboard(browser, finished):
    browser.open(finished.folder.page.as_uri())
    browser.run("document.querySelector('.reel .token').focus()")
    first = browser.run("document.querySelector('.reel .about').textContent")
    browser.press("ArrowRight")
    second = browser.run("document.querySelector('.reel .about').textContent")
    assert "confidence. Most likely then: “" in first
    assert first != second
    assert browser.run("document.activeElement.dataset.place") == "1"


def test_samples_are_filtered_and_sorted(browser, tmp_path):
    texts, rewards = [f"answer {k}" for k in range(60)], [k / 10 for k in range(60)]
    write_page(write_run(tmp_path / "run", [rows_of(texts, rewards)] * 2))
    browser.open((tmp_path / "run" / "report.html").as_uri())
    shown = "[...document.querySelectorAll('.samples tbody tr')].map((row) => Number(row.dataset.reward))"
    assert browser.run(shown) == sorted(rewards * 2, reverse=True)[:20]
    browser.run("document.getElementById('sort-reward').click()")
    assert browser.run(shown) == sorted(rewards * 2)[:20]
    fill(browser, "filter-low", "2")
    fill(browser, "filter-high", "3")
    choose(browser, "filter-step", "20")
    assert browser.run(shown) == [2 + k / 10 for k in range(11)]
    fill(browser, "filter-text", "ANSWER 25")
    assert browser.run(shown) == [2.5]
    assert browser.run("document.getElementById('sample-count').textContent") == "1 of 120 samples match"


def test_a_hostile_completion_does_nothing(browser, tmp_path):
    rows = rows_of(HOSTILE, [float(k) for k in range(len(HOSTILE))], prompt=HOSTILE[0] * 9)
    replay = {"tokens": HOSTILE[:5], "steps": [0, 1, 2, 3, 4], "confidence": [0.5] * 5}
    rows[0]["replay"] = {**replay, "alternatives": [[[HOSTILE[1], 0.5]]] * 5}
    folder = write_run(tmp_path / "run", [rows, rows])
    path = tmp_path / "page.html"
    path.write_text(page_of([PageRun(folder, HOSTILE[1], HOSTILE[0])], HOSTILE[0]), encoding="utf-8")
    browser.open(path.as_uri())
    browser.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    browser.run("document.querySelector('.reel .token').focus()")
    assert browser.run("document.title") == HOSTILE[0]
    assert browser.problems() == []
    assert browser.requests() == [path.as_uri()]
    assert (
        browser.run("document.querySelectorAll('main script, main img, main a[href^=javascript]').length")
        == 0
    )
    text = browser.run("document.getElementById('main').textContent")
    assert HOSTILE[0] in text
    assert "⟨U+202E⟩" in text
    assert "\u202e" not in text
    browser.resize(390, 844)
    assert browser.run("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_a_phone_and_can_be_read(browser, finished, dark):
    browser.open(finished.folder.page.as_uri(), width=390, height=844, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") == 390
    ratio = browser.run(CONTRAST)
    assert ratio >= 4.5, ratio
    unnamed = "[...document.querySelectorAll('svg[role=img], button, input, select')]"
    named = ".filter((one) => !(one.getAttribute('aria-label') || one.textContent || one.closest('label')))"
    assert browser.run(f"{unnamed}{named}.length") == 0


CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const light = (text) => {
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const ratio = (a, b) => {
    const [x, y] = [light(value(a)), light(value(b))].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const onCard = ['--ink', '--soft', '--accent', '--good', '--bad'].map((name) => ratio(name, '--card'));
  const shades = ['--early', '--mid', '--late', '--faint', '--warnbg', '--bg'];
  const onShades = shades.map((name) => ratio('--ink', name));
  return Math.min(...onCard, ...onShades);
})()"""


def test_sudokus_and_sums_are_drawn(browser, tmp_path):
    solved = {"prompt": "1234341200004321>", "completion": "1234341221434321", "reward": 1.0}
    wrong = {**solved, "completion": "1134341221434321", "reward": 0.5}
    write_page(write_run(tmp_path / "grid", [[solved, wrong]] * 2, task=MiniConfig(kind="sudoku-mini")))
    browser.open((tmp_path / "grid" / "report.html").as_uri())
    assert browser.run("document.querySelectorAll('.samples tr:first-child .digit.wrong').length") == 0
    assert browser.run("document.querySelectorAll('.samples tbody .digit.wrong').length") > 0
    task = MiniConfig(kind="countdown-mini")
    rows = [{"prompt": "03,40,22=65>", "completion": "03+40+22", "reward": 1.0}]
    write_page(write_run(tmp_path / "sum", [rows] * 2, task=task))
    browser.open((tmp_path / "sum" / "report.html").as_uri())
    assert browser.run("document.querySelector('.samples .check').textContent") == (
        "03+40+22 = 65✓ target 65✓ numbers 3, 40, 22"
    )


def test_several_runs_share_a_page(browser, tmp_path):
    folders = [
        write_run(tmp_path / name, [rows_of(["a"], [r])] * 2) for name, r in (("one", 0.1), ("two", 0.9))
    ]
    path = tmp_path / "both.html"
    path.write_text(
        page_of([PageRun(f, f.path.name, f.path.name) for f in folders], "both"), encoding="utf-8"
    )
    browser.open(path.as_uri())
    assert browser.problems() == []
    assert "0.900, of two" in browser.run("document.getElementById('headline').textContent")
    assert browser.run("document.querySelectorAll('[data-chart=reward] polyline').length") == 2
    choose(browser, "run", "1")
    assert browser.run("document.querySelector('.samples tbody tr').dataset.reward") == "0.9"


def test_a_comparison_begins_with_its_common_tokens_and_has_a_mean_for_each_setting(browser, tmp_path):
    subjects = []
    for place in range(8):
        rows = [rows_of(["a"], [(place + k) / 10]) for k in range(2)]
        folder = write_run(tmp_path / f"run-{place}", rows, budget="100tokens")
        subjects.append(PageRun(folder, f"run-{place}", f"method {place // 2}"))
    path = tmp_path / "all.html"
    path.write_text(page_of(subjects, "all"), encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.run("document.getElementById('axis').value") == "spent_tokens"
    assert browser.run("document.querySelector('[data-chart=reward] output').textContent") == (
        "Latest, mean per setting: method 0 0.150 · method 1 0.350 · method 2 0.550 · method 3 0.750"
    )
    assert "KL to the base is measured with adapters only, or with methods that read the base" in browser.run(
        "document.querySelector('#curves .note').textContent"
    )


def test_a_watched_page_follows_its_run(browser, tmp_path):
    folder = write_run(tmp_path / "run", [rows_of(["a"], [0.25])] * 2)
    with PageServer([PageRun(folder, "run", "")], "run") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.open(server.url)
        fill(browser, "filter-text", "b")
        browser.run("document.getElementById('filter-text').focus()")
        write_samples(folder, 30, 3.0, rows_of(["b"], [0.75]))
        with folder.metrics.open("a") as file:
            file.write('{"event": "evaluation", "step": 30, "tilt": 3.0, "reward": 0.75, "seconds": 9.0}\n')
        browser.wait("document.getElementById('verdict').textContent.includes('0.75')")
        assert browser.run("document.querySelector('.samples tbody tr').dataset.reward") == "0.75"
        assert browser.run("document.activeElement.id") == "filter-text"
        assert browser.run("document.querySelectorAll('[data-chart=reward] circle.point').length") == 3
        assert [one for one in browser.problems() if "favicon" not in one] == []
        assert all(url.startswith(server.url) for url in browser.requests())
        server.shutdown()


def fill(browser, field: str, text: str) -> None:
    browser.run(f"document.getElementById('{field}').value = '{text}'")
    browser.run(f"document.getElementById('{field}').dispatchEvent(new Event('input'))")


def choose(browser, field: str, value: str) -> None:
    browser.run(f"document.getElementById('{field}').value = '{value}'")
    browser.run(f"document.getElementById('{field}').dispatchEvent(new Event('change'))")
