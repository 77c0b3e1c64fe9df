"""The page in a real browser: write, watch, keep a word, rewrite, compare, replay; by mouse and by keyboard."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from browser import CHROMIUM, Browser
from serve_load import Process

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
CTRL = 2
FINISHED = "!!document.querySelector('.panel button.t') && document.getElementById('stop').hidden"
WORDS = "[...document.querySelectorAll('.panel button.t')].map((word) => word.textContent)"


@pytest.fixture(scope="module")
def server(model_directory):
    with Process("--model", str(model_directory), OMP_NUM_THREADS="1") as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture
def page(server, browser):
    """A fresh page without a past, whose texts take 20 steps from seed 7."""
    browser.open(server.url)
    browser.wait("document.body?.dataset.ready === 'yes'")
    browser.run("localStorage.clear()")
    browser.open(server.url + "/?fresh")
    browser.wait("location.search === '?fresh' && document.body?.dataset.ready === 'yes'")
    browser.run(
        """(() => {
          const set = (node, value) => { node.value = value; node.dispatchEvent(new Event("input")); };
          set(document.getElementById("prompt"), "the pizza");
          set(document.getElementById("seed"), "7");
          set(document.querySelector(".side input[type=range]"), "20");
          // Every state that the text goes through.
          window.drafts = [];
          new MutationObserver(() => {
            const text = document.querySelector(".panel .text");
            if (text.dataset.kind === "draft") window.drafts.push(text.textContent);
          }).observe(document.getElementById("panels"), { subtree: true, childList: true, characterData: true });
        })()"""
    )
    yield browser
    assert browser.problems == []


def press(page, text):
    page.run(f"[...document.querySelectorAll('button')].find((one) => one.textContent === {json.dumps(text)}).click()")


def test_write_and_watch(page, pipeline):
    page.run("document.querySelector('input[value=negative]').click()")
    page.run("document.getElementById('prompt').focus()")
    page.key("Enter", CTRL)
    page.wait(FINISHED)
    output = pipeline("the pizza", control="sentiment=negative", seed=7, steps=20)
    assert " ".join(page.run(WORDS)) == output.texts[0]
    assert page.run("window.drafts.length") > 3
    assert page.run("document.querySelectorAll('.panel .curve path').length") == 1
    assert page.run("document.querySelectorAll('.panel button.t.key').length") > 0
    assert "p(negative) = " in page.run("document.querySelector('.facts').textContent")
    assert page.run("document.getElementById('say').textContent") == f"Finished: {output.texts[0]}"
    assert page.run("document.querySelectorAll('#entries li').length") == 1


def test_keep_words_and_rewrite_the_rest(page, pipeline):
    page.run("document.getElementById('write').click()")
    page.wait(FINISHED)
    before = page.run(WORDS)
    page.run("document.querySelectorAll('.panel button.t')[1].click()")
    page.run("document.querySelectorAll('.panel button.t')[1].focus()")  # by keyboard from here
    page.key("ArrowRight")
    page.key("ArrowRight")
    page.key(" ", text=" ")
    pressed = (
        "[...document.querySelectorAll('.panel button.t')].flatMap((one, i) => one.ariaPressed === 'true' ? [i] : [])"
    )
    assert page.run(pressed) == [1, 3]
    press(page, "Rewrite the rest")
    page.wait("document.querySelector('.named').textContent.startsWith('rewritten, 2 kept')")
    page.wait(FINISHED)
    after = page.run(WORDS)
    assert [after[1], after[3]] == [before[1], before[3]]
    times = [0 if i in (1, 3) else 0.4 for i in range(len(before))]
    assert " ".join(after) == pipeline.rewrite(" ".join(before), times, seed=8, steps=20).texts[0]


def test_compare_from_the_same_seed_and_replay(page, pipeline):
    page.run("document.querySelector('input[value=positive]').click()")
    page.run("document.getElementById('compare').click()")
    assert page.run("document.querySelectorAll('.side').length") == 2
    page.run("document.getElementById('write').click()")
    done = "[...document.querySelectorAll('.panel')].filter((one) => one.querySelector('button.t')).length === 2"
    page.wait(f"{done} && document.getElementById('stop').hidden")
    texts = page.run(
        "[...document.querySelectorAll('.panel')]"
        ".map((one) => [...one.querySelectorAll('button.t')].map((word) => word.textContent).join(' '))"
    )
    wanted = [
        pipeline("the pizza", control="sentiment=positive", seed=7, steps=20, allocation=policy).texts[0]
        for policy in ("constant", "adaptive:0.6")
    ]
    assert texts == wanted
    page.run("document.getElementById('moment').value = 0")
    page.run("document.getElementById('moment').dispatchEvent(new Event('input'))")
    assert page.run(
        "[...document.querySelectorAll('.facts')].map((one) => one.textContent.includes('step 1 of 20'))"
    ) == [
        True,
        True,
    ]
    page.run("document.getElementById('moment').value = 900")
    press(page, "Replay")
    page.wait("document.getElementById('where').textContent === 'finished'")


def test_copies_and_the_past(page):
    page.run("document.querySelector('input[value=positive]').click()")
    page.run("document.getElementById('write').click()")
    page.wait(FINISHED)
    page.run("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text); }")
    for kind in ("command", "Python", "curl"):
        press(page, kind)
    command, python, curl = page.wait("window.copied.length === 3 && window.copied")
    assert command.startswith("tta generate 'the pizza' --control sentiment=positive --steps 20 --model ")
    assert command.endswith("--seed 7")
    assert 'pipe("the pizza", control=["sentiment=positive"], steps=20, seed=7)' in python
    assert """-d '{"prompt":"the pizza","control":["sentiment=positive"],"steps":20,"seed":7}'""" in curl
    text = page.run(WORDS)
    page.open(page.run("location.origin"))
    page.wait("location.search === '' && document.body?.dataset.ready === 'yes'")
    page.run("document.querySelector('#entries button').click()")
    assert page.run(WORDS) == text
    assert page.run("document.querySelector('.side input[value=positive]').checked")
    assert page.run("document.getElementById('prompt').value") == "the pizza"


def test_stop_and_errors(page):
    page.run("document.querySelector('.side input[type=range]').value = 200")
    page.run("document.getElementById('write').click()")
    page.wait("document.querySelectorAll('.panel .t').length > 3")
    page.key("Escape")
    page.wait("document.getElementById('stop').hidden")
    assert page.run("document.getElementById('problem').hidden")
    page.run("document.querySelector('.side input[type=number]').value = 2000")  # a length beyond the limit
    page.run("document.getElementById('ask').noValidate = true; document.getElementById('write').click()")
    assert "must be at most 1024" in page.wait("document.getElementById('problem').textContent")
    page.problems.clear()  # the browser logs the 400 that was asked for


def test_a_second_text_takes_the_place_of_the_first(page):
    """Asked for again before it is finished, or left for an older text."""
    page.run("document.getElementById('write').click()")
    page.wait(FINISHED)
    older = page.run(WORDS)
    page.run(
        """(() => {
          const text = document.querySelector(".panel .text");
          window.stopped = false;
          new MutationObserver(() => { window.stopped ||= text.textContent === "Stopped."; })
            .observe(document.getElementById("panels"), { subtree: true, childList: true, characterData: true });
        })()"""
    )
    page.run("document.getElementById('write').click(); document.getElementById('write').click()")
    page.wait(FINISHED)
    assert not page.run("window.stopped")
    page.run("document.querySelector('.side input[type=range]').value = 200")
    page.run("document.getElementById('write').click()")
    page.wait("document.querySelectorAll('.panel .t').length > 3")
    page.run("document.querySelector('#entries button').click()")
    page.wait("document.getElementById('stop').hidden")
    assert page.run(WORDS) == older
    assert page.run("document.querySelectorAll('#entries li').length") == 1


def test_a_text_is_remembered_with_the_model_that_wrote_it(page):
    page.run("document.getElementById('write').click()")
    wrote = page.run(
        """(() => {
          const model = document.getElementById("model"), wrote = model.value;
          model.append(new Option("another"));
          model.value = "another";
          return wrote;
        })()"""
    )
    page.wait(FINISHED)
    assert page.run("JSON.parse(localStorage.getItem('tta.history'))[0].model") == wrote


def test_any_number_of_steps_can_be_a_model_s_own(page):
    asked = page.run(
        """(async () => {
          const { Settings } = await import("/page/settings.js");
          const own = { steps: 32, strength: 2, feedback: "guided", temperature: 1, allocation: "constant" };
          const options = { policies: [{ name: "constant" }], limits: { steps: 1000 } };
          const count = (steps) => {
            const side = new Settings("one");
            side.offer(options, { length: 32, controls: {}, defaults: { ...own, steps } });
            return side.read();
          };
          return [count(32), count(300), count(3)];
        })()"""
    )
    assert asked == [{}, {}, {}]


def test_a_revision_is_asked_for_where_it_is_not_the_model_s_own(page):
    asked = page.run(
        """(async () => {
          const { Settings } = await import("/page/settings.js");
          const own = { steps: 32, strength: 2, feedback: "guided", temperature: 1, allocation: "constant", revise: 4 };
          const side = new Settings("one");
          const options = { policies: [{ name: "constant" }], limits: { steps: 50 } };
          side.offer(options, { length: 32, controls: {}, defaults: own });
          const before = side.read();
          side.write({ revise: 0 });
          return [before, side.read()];
        })()"""
    )
    assert asked == [{}, {"revise": 0}]


def test_what_a_fold_hides_does_not_stop_writing_unsaid(page):
    strength, heat = (f"document.querySelectorAll('.side details input')[{i}].value =" for i in range(2))
    page.run(f"{strength} '2.5'; document.getElementById('write').click()")  # no multiple of anything
    page.wait(FINISHED)
    page.run(f"{heat} '9'; document.getElementById('prompt').focus()")
    page.key("Enter", CTRL)
    assert page.run("document.querySelector('.side details').open")
    assert page.run("document.getElementById('stop').hidden")


def test_a_character_of_several_tokens_is_one_word_to_keep(page):
    shown, keep, times = page.run(
        """(async () => {
          const { Panel } = await import("/page/panel.js");
          const panel = new Panel({});
          panel.begin("");
          panel.finish({ pieces: [" ", "\\u4e2d", "", " ok"], p: {}, steps: 1, seed: 7 }, {});
          const words = [...panel.text.querySelectorAll("button")];
          words[1].click();
          const { keep, times } = panel.spans();
          return [words.map((word) => word.hidden ? "" : `${word.textContent} ${word.tabIndex}`), keep, times];
        })()"""
    )
    assert shown == ["", "\u4e2d 0", "", "ok -1"]
    assert (keep, times) == ([[1, 2]], [0.4, 0, 0, 0.4])


def test_small_and_dark(page):
    for dark in (False, True):
        page.size(360, 740, dark=dark, phone=True)
        assert page.run("document.documentElement.scrollWidth") <= 360
        ink, paper = page.run(
            "(({ color, backgroundColor }) => [color, backgroundColor])(getComputedStyle(document.body))"
        )
        assert ink != paper
        light = [sum(map(int, one[4:-1].split(","))) for one in (ink, paper)]
        assert (light[0] > light[1]) == dark
    page.size(1200, 900)


def test_everything_has_a_name(page):
    """What a screen reader meets: every field and button says what it is."""
    nameless = page.run(
        """[...document.querySelectorAll("button, input, select, textarea")].filter((one) =>
          !one.closest("dialog") && !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length"""
    )
    assert nameless == 0
    assert page.run("document.documentElement.lang") == "en"
    assert page.run("document.querySelectorAll('[aria-live]').length") >= 2
