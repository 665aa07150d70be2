"""`pynvml` for a process: the real module, over the cards in CARDS (JSON). See nvml_library.py."""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path

real = importlib.metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
spec = importlib.util.spec_from_file_location("pynvml", real)
sys.modules["pynvml"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.path.append(str(Path(__file__).parents[1]))

importlib.import_module("nvml_library").install(json.loads(os.environ["CARDS"]))
