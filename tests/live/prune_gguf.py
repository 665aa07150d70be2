"""A draft model of one layer, cut from a GGUF model: wrong words, the right cost.

Under forced acceptance what a draft says does not matter, only how long it takes.
"""

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

SKIPPED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def prune(source, target, num_layers=1):
    """Keep the first `num_layers` blocks, the embedding and the head."""
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name in SKIPPED:
            continue
        value = num_layers if name == f"{architecture}.block_count" else field.contents()
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk" and int(parts[1]) >= num_layers:
            continue
        writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
