"""Models whose shape and formats are published: read bytes without a file or a network."""

import importlib.resources
from functools import cache
from typing import Any

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.model_config import shape_of_config
from sakiyomi.models.read_model import derive_by_role
from sakiyomi.models.weights import ReadBytes


class PublishedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's config, its formats by role (bf16 where none is named) and where they stand."""

    name: str
    config: dict[str, Any]
    formats: dict[str, str]
    source: str
    aliases: tuple[str, ...] = ()
    vision_parameters: float = 0.0
    kv_bits: float = 16


@cache
def published_models() -> tuple[PublishedModel, ...]:
    """The models that ship with the package."""
    table = importlib.resources.files("sakiyomi") / "data" / "published_models.json"
    return msgspec.json.decode(table.read_bytes(), type=tuple[PublishedModel, ...])


@cache
def published_names() -> frozenset[str]:
    """Names and aliases in lower case."""
    return frozenset(
        name.lower() for model in published_models() for name in (model.name, *model.aliases)
    )


def published_model(name: str) -> ReadBytes:
    """Read bytes of a published model, by its name or an alias."""
    for model in published_models():
        if name.lower() in (model.name.lower(), *map(str.lower, model.aliases)):
            read = derive_by_role(
                shape_of_config(model.config),
                model.formats,
                name=model.name,
                source=f"derived from published facts ({model.source})",
                vision_parameters=model.vision_parameters,
            )
            return msgspec.structs.replace(read, kv_element_bytes=model.kv_bits / 8)
    names = ", ".join(model.name for model in published_models())
    raise CheckpointError(f"no published model goes by {name!r}", f"known: {names}")
