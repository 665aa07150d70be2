"""A llama-server that is the fake engine: its flags, and a step that costs 1.1 + 0.2 k plain ones.

`python fake_llama.py -m MODEL --host H --port N [--spec-draft-n-max K] [--spec-synth-rates P,...]`
"""

import argparse

from sakiyomi.fake_engine import main

FIXED = 0.1
PER_DRAFT = 0.2
REAL_RATES = (0.9, 0.8, 0.05, 0.02)
"""Acceptance where none is forced: long drafts do not pay."""


def start():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m")
    parser.add_argument("--host")
    parser.add_argument("--port")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--spec-type")
    parser.add_argument("--spec-draft-n-max", type=int)
    parser.add_argument("--spec-synth-rates")
    options = parser.parse_args()
    argv = ["--dialect", "llama.cpp", "--port", options.port, "--model", "M"]
    argv += ["--ttft", "0.01", "--step", "0.016"]
    k = options.spec_draft_n_max
    if k:
        rates = options.spec_synth_rates or ",".join(str(rate) for rate in REAL_RATES[:k])
        argv += ["--k", str(k), "--acceptance", rates]
        argv += ["--step-cost", str(1 + FIXED + PER_DRAFT * k)]
    return main(argv)


if __name__ == "__main__":
    raise SystemExit(start())
