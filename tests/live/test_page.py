"""The page in a real browser: nothing leaves it, nothing fails, charts have their marks."""

import asyncio
import base64
import os
import sys
from pathlib import Path

import pytest
from chromium import open_page

sys.path.append(str(Path(__file__).parents[1] / "cli"))
from page_run import english, write_run, write_why

from sakiyomi.cli import main

pytestmark = pytest.mark.live
PICTURES = os.environ.get("SAKIYOMI_PICTURES")
"""A folder that keeps the pictures, for people to look at."""
SHEET_PX = 690
"""Between the margins of an A4 sheet, at 96 pixels to the inch."""
OVERLAPS = """(() => {
  const boxes = (svg) => [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
  const meet = ([, a], [, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  return [...document.querySelectorAll(".drawing svg")].flatMap((svg) => {
    const all = boxes(svg);
    return all.flatMap((one, i) => all.slice(i + 1).filter((two) => meet(one, two)).map((two) => `${one[0]} / ${two[0]}`));
  });
})()"""
CUT = """[...document.querySelectorAll(".drawing svg text")].filter((t) => {
  const box = t.getBoundingClientRect();
  return box.left < 0 || box.right > innerWidth;
}).map((t) => t.textContent)"""
"""Labels that lie on each other; labels that leave the page."""
MARKS = {"speed": 4, "positions": 6, "time": 48, "segments": 4, "why": 4}


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
    run = write_run(tmp_path / "run")
    write_why(run)
    path = page_path(run, lang)

    async def visit(page):
        for name, number in MARKS.items():
            assert await page.run(f"document.querySelectorAll('#chart-{name} .mark').length") >= (
                number
            ), name
        assert await page.run("document.documentElement.scrollWidth") <= width
        assert await page.run(OVERLAPS) == []
        assert await page.run(CUT) == []
        labels = "[...document.querySelectorAll('#chart-segments text')].map((t) => t.textContent)"
        assert not [label for label in await page.run(labels) if label.endswith("…")]
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


@pytest.mark.parametrize("kind", ["founding-case", "why", "compare"])
def test_the_japanese_page_speaks_japanese_in_its_charts_too(page_path, tmp_path, kind):
    """Charts, their tables and labels for ears; pages of several runs as those of one."""
    path = many_runs(tmp_path, "ja") if kind == "compare" else None
    if kind == "why":
        write_why(write_run(tmp_path / "run"))
    path = path or page_path(tmp_path / "run" if kind == "why" else kind, "ja")

    async def visit(page):
        await page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        await page.run(
            "document.querySelectorAll('code, .prompt, .answer').forEach((n) => n.remove())"
        )
        seen = await page.run("document.body.innerText")
        tips = await page.run(
            "[...document.querySelectorAll('[data-tip]')].map((n) => n.dataset.tip)"
        )
        names = await page.run(
            "[R.name, ...Object.values(R.environment), ...R.cells.flatMap((c) => [c.scenario, c.arm])]"
        )
        for text in (seen, "\n".join(tips)):
            assert english(text, [str(name) for name in names if name]) == []
        labels = (
            "[...document.querySelectorAll('svg[aria-label]')].map((n) => n.ariaLabel).join('\\n')"
        )
        assert english(await page.run(labels), [str(name) for name in names if name]) == []

    browse(path, visit)


def many_runs(tmp_path, lang):
    runs = [str(write_run(tmp_path / name)) for name in ("first", "second")]
    path = tmp_path / "compared.html"
    assert main(["compare", *runs, "-o", str(path), "--lang", lang]) == 0
    return path


@pytest.mark.parametrize(("width", "lang"), [(1280, "en"), (390, "ja")])
def test_several_runs_in_one_page(tmp_path, monkeypatch, width, lang):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    path = many_runs(tmp_path, lang)

    async def visit(page):
        count = "document.querySelectorAll('#chart-{} .mark').length"
        assert await page.run(count.format("speed")) == 8
        assert await page.run(count.format("time")) >= 96
        assert await page.run(count.format("segments")) >= 8
        assert await page.run("document.querySelectorAll('#section-explanation p').length") >= 4
        assert await page.run("document.getElementById('section-curve').hidden") is True
        await page.run("document.querySelector('.chip[data-filter=arm]').click()")
        assert await page.run(count.format("speed")) == 2
        assert await page.run("document.documentElement.scrollWidth") <= width
        assert await page.run(OVERLAPS) == []

    browse(path, visit, width=width)


@pytest.mark.parametrize("kind", ["founding-case", "run"])
def test_a_printed_page_fits_its_sheet(page_path, tmp_path, kind):
    path = page_path(write_run(tmp_path / "run") if kind == "run" else kind, "ja")

    async def visit(page):
        await page.call("Emulation.setEmulatedMedia", media="print")
        await page.run("dispatchEvent(new Event('beforeprint'))")
        wide = (
            "[...document.querySelectorAll('body *')].filter((n) => n.getBoundingClientRect().right "
            f"> {SHEET_PX} + 1).map((n) => n.tagName + ' ' + n.textContent.slice(0, 40))"
        )
        assert await page.run(wide) == []
        hidden = (
            "[...document.querySelectorAll('button, #section-list')].every((n) => !n.offsetParent)"
        )
        assert await page.run(hidden) is True
        ground = "getComputedStyle(document.body).backgroundColor"
        assert await page.run(ground) == "rgb(255, 255, 255)"
        said = await page.call("Page.printToPDF", preferCSSPageSize=True)
        assert base64.b64decode(said["data"]).startswith(b"%PDF")

    browse(path, visit, width=SHEET_PX, dark=True)


def test_the_chart_of_entropy_turns_to_surprisal(page_path, tmp_path):
    run = write_run(tmp_path / "run")
    write_why(run)
    path = page_path(run)

    async def visit(page):
        first = await page.run("document.querySelector('#chart-why svg').ariaLabel")
        await page.run("document.querySelectorAll('#controls-why button')[1].click()")
        second = await page.run("document.querySelector('#chart-why svg').ariaLabel")
        return first, second

    first, second = browse(path, visit)
    assert "entropy of the token" in first
    assert "surprisal of the token" in second
