"""The page in a real browser: nothing leaves it, nothing fails, charts have their marks."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from chromium import open_page

sys.path.append(str(Path(__file__).parents[1] / "cli"))
from page_run import write_run

from sakiyomi.cli import main

pytestmark = pytest.mark.live
PICTURES = os.environ.get("SAKIYOMI_PICTURES")
"""A folder that keeps the pictures, for people to look at."""
MARKS = {"speed": 4, "positions": 6, "time": 48, "segments": 4}


@pytest.fixture
def page_path(tmp_path, monkeypatch):
    def write(run, lang="en"):
        monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
        path = tmp_path / f"report-{lang}.html"
        assert main(["report", str(run), "-o", str(path), "--lang", lang]) == 0
        return path

    return write


def browse(path, visit, **view):
    """Open the page, visit it, and hold it to silence: no request but its own, no error."""

    async def session():
        async with open_page() as page:
            await page.open(path.as_uri(), **view)
            found = await visit(page)
            assert page.errors == []
            assert {url for url in page.requests if not url.startswith("data:")} == {path.as_uri()}
            return found

    return asyncio.run(session())


@pytest.mark.parametrize("lang", ["en", "ja"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_opens_wide_and_narrow(page_path, tmp_path, lang, width, dark):
    path = page_path(write_run(tmp_path / "run"), lang)

    async def visit(page):
        for name, number in MARKS.items():
            assert await page.run(f"document.querySelectorAll('#chart-{name} .mark').length") >= (
                number
            ), name
        assert await page.run("document.documentElement.scrollWidth") <= width
        tall = await page.run("document.documentElement.scrollHeight")
        await page.resize(width, tall)
        folder = Path(PICTURES) if PICTURES else tmp_path
        picture = folder / f"page-{lang}-{width}-{'dark' if dark else 'light'}.png"
        await page.picture(picture)
        return picture.read_bytes()

    assert browse(path, visit, width=width, dark=dark).startswith(b"\x89PNG")


def test_a_script_in_an_answer_does_nothing(page_path, tmp_path):
    path = page_path(write_run(tmp_path / "run"))

    async def visit(page):
        await page.run("document.querySelector('#requests > details').open = true")
        await asyncio.sleep(0.2)
        await page.run("document.querySelector('#requests details details').open = true")
        await asyncio.sleep(0.2)
        for index in range(2):
            await page.run(f"document.querySelectorAll('#requests button.read')[{index}].click()")
            answer = await page.run("document.querySelector('.answer').textContent")
            assert "<script>window.hacked = 1</script>" in answer
            assert "<img src=x onerror=" in answer
        assert await page.run("window.hacked === undefined") is True
        assert await page.run("document.querySelectorAll('img').length") == 0
        assert await page.run("document.scripts.length") == 2

    browse(path, visit)


def test_filters_choose_rows_charts_and_conversations(page_path, tmp_path):
    path = page_path(write_run(tmp_path / "run"))
    rows = "[...document.querySelectorAll('tr.cell')].filter((r) => !r.hidden).length"
    bars = "document.querySelectorAll('#chart-speed .mark').length"
    lists = "document.querySelectorAll('#requests > details').length"

    async def visit(page):
        assert [await page.run(x) for x in (rows, bars, lists)] == [4, 4, 2]
        await page.run("document.querySelector('.chip[data-filter=scenario]').click()")
        assert [await page.run(x) for x in (rows, bars, lists)] == [2, 2, 1]
        await page.run("document.querySelector('.chip[data-filter=arm]').click()")
        assert [await page.run(x) for x in (rows, bars, lists)] == [1, 1, 1]
        pressed = "[...document.querySelectorAll('.chip')].map((c) => c.ariaPressed).join()"
        assert await page.run(pressed) == "true,false,true,false"
        await page.run("document.querySelector('.chip[data-filter=arm]').click()")  # the last one
        assert await page.run(rows) == 2

    browse(path, visit)


def test_the_keyboard_reads_a_chart(page_path, tmp_path):
    path = page_path(write_run(tmp_path / "run"))

    async def visit(page):
        await page.run("document.querySelector('#chart-speed svg').focus()")
        for _ in range(2):
            await page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
        return await page.run("document.getElementById('tip').textContent")

    assert "mtp-k3" in browse(path, visit)


def test_the_founding_case(page_path):
    path = page_path("founding-case", "ja")

    async def visit(page):
        assert await page.run("document.querySelectorAll('#chart-bytes .mark').length") > 20
        assert await page.run("document.querySelectorAll('#chart-curve .mark').length") >= 4
        assert await page.run("document.getElementById('section-time').hidden") is True

    browse(path, visit)
