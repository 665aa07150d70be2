"""Which metrics page a dialect has. Pure."""

from collections.abc import Callable

from sakiyomi.fake_engine.other_pages import ovms_page, sglang_page, tgi_page, trtllm_page
from sakiyomi.fake_engine.page_text import PageState
from sakiyomi.fake_engine.vllm_pages import llamacpp_page, lmdeploy_page, vllm_page

PAGES: dict[str, Callable[[PageState], list[str]]] = {
    "vllm": vllm_page,
    "llama.cpp": llamacpp_page,
    "lmdeploy": lmdeploy_page,
    "sglang": sglang_page,
    "tensorrt-llm": trtllm_page,
    "tgi": tgi_page,
    "ovms": ovms_page,
}


def metrics_page(state: PageState) -> str | None:
    """The page in the dialect, or None where the engine has none."""
    render = PAGES.get(state.config.dialect)
    return "".join(line + "\n" for line in render(state)) if render else None
