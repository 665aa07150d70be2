"""A buffer on the way spoils the times of all answers, and nothing that was counted (F07)."""

import pytest
from measured_run import fake, run_engines, scenario


@pytest.mark.parametrize(
    ("dialect", "k"), [("vllm", 3), ("vllm", None), ("llama.cpp", 3), ("sglang", 3)]
)
def test_f07_no_time_is_told_from_a_stream_in_packs(tmp_path, dialect, k):
    config = fake(dialect, k=k, step_s=0.01, faults=("buffer_every_s=0.15",))
    asked = {"mine": scenario(num_conversations=4, max_tokens=60)}
    report, logs = run_engines(tmp_path, {"a": config}, repeats=1, scenarios=asked)
    (cell,) = report.cells
    assert "buffered_stream" in {caution.kind for caution in cell.cautions}
    assert (cell.ttft_s, cell.decode_tokens_per_s) == (None, None)
    assert cell.e2e_s is not None
    assert cell.output_tokens_per_s is not None
    assert cell.num_failed == 0
    if k:
        drafts = [s for e in logs["a"][-4:] for s in e.steps if s.num_draft_tokens]
        assert cell.acceptance.num_draft_tokens == sum(s.num_draft_tokens for s in drafts)
        assert cell.acceptance.num_accepted_tokens == sum(s.num_accepted_tokens for s in drafts)


@pytest.mark.parametrize("dialect", ["mlx-lm", "ollama"])
def test_f07_packs_of_a_buffer_are_no_decode_steps(tmp_path, dialect):
    config = fake(dialect, k=3, step_s=0.01, faults=("buffer_every_s=0.3",))
    asked = {"mine": scenario(num_conversations=3, max_tokens=120)}
    report, _ = run_engines(tmp_path, {"a": config}, repeats=1, scenarios=asked)
    (cell,) = report.cells
    assert (cell.acceptance, cell.tokens_per_step) == (None, None)
    assert cell.decode_tokens_per_s is None
