"""What launching an arm takes: its command line, its environment, and a config file."""

import msgspec

from sakiyomi.engines import find_engine
from sakiyomi.engines.engine import CONFIG_FILE
from sakiyomi.errors import EngineError, PlanError
from sakiyomi.plan import Arm


class StartCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm is started. `env` is added to sakiyomi's own environment.

    `config_text` is to be written where the command says `{config}`; None: there is no such file.
    """

    command: list[str]
    env: dict[str, str]
    config_text: str | None


def start_command(arm: Arm, port: int, config_path: str = CONFIG_FILE) -> StartCommand:
    """The command of an arm on a port; `{config}` in it becomes `config_path`.

    Raises EngineError where the engine cannot be launched and the arm brings no command.
    """
    engine = find_engine(arm.engine)
    if arm.command:
        command = fill_command(arm, port)
    elif engine.command:
        command = engine.command(arm, port)
    else:
        raise EngineError(
            f"{arm.name}: sakiyomi cannot launch {engine.title}",
            "start it yourself and give its url, or give a command",
        )
    text = engine.config_file(arm) if engine.config_file else None
    if text is None or not any(CONFIG_FILE in word for word in command):
        return StartCommand(command=command, env=_env(arm, port), config_text=None)
    return StartCommand(
        command=[word.replace(CONFIG_FILE, config_path) for word in command],
        env=_env(arm, port),
        config_text=text,
    )


def fill_command(arm: Arm, port: int) -> list[str]:
    """The arm's `command` with `{model}` and `{port}` filled in.

    A word `{args}` becomes all that sakiyomi would put after the engine's program: model, port,
    the flags of the arm's speculation and its args.
    """
    command: list[str] = []
    for word in arm.command:
        if word == "{args}":
            engine = find_engine(arm.engine)
            if engine.command is None:
                raise PlanError(
                    f"arm {arm.name}: {{args}} in its command, but {engine.title} is not launched",
                    "name the engine, or write its flags out",
                )
            command += engine.command(arm, port)[1:]
        elif word == "{model}" and not arm.model:
            raise PlanError(f"arm {arm.name}: its command has {{model}}", "give the arm a model")
        else:
            command.append(word.replace("{model}", arm.model or "").replace("{port}", str(port)))
    return command


def _env(arm: Arm, port: int) -> dict[str, str]:
    """What the engine needs to be told by environment; the arm's own word wins."""
    engine = find_engine(arm.engine)
    told = engine.launch_env(arm, port) if engine.launch_env else {}
    return {**told, **arm.env}
