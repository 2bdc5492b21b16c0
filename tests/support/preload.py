"""Imported once by the fork server: everything heavy that a run imports, so that its children import next to nothing."""

import gc
import importlib
import importlib.util

from vlmrl.compat import ensure_torchvision

ensure_torchvision()

import accelerate.tracking  # noqa: E402, F401
import av  # noqa: E402, F401
import scipy.optimize  # noqa: E402
import scipy.stats  # noqa: E402, F401 (intervals of every evaluation)
import torch  # noqa: E402
import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl  # noqa: E402
import transformers.models.qwen2_vl.video_processing_qwen2_vl  # noqa: E402, F401
from PIL import Image  # noqa: E402
from transformers import AutoModelForImageTextToText, AutoProcessor  # noqa: E402, F401
from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor  # noqa: E402, F401

import vlmrl.cli  # noqa: E402
import vlmrl.run.start  # noqa: E402, F401
from vlmrl.methods import registries  # noqa: E402

for optional in ("decord", "deepspeed"):  # the latter because accelerate imports it when a model is saved; vLLM's environment has neither
    if importlib.util.find_spec(optional) is not None:
        importlib.import_module(optional)
registries()  # every method of every slot
Image.preinit()
torch.set_num_threads(1)
gc.freeze()  # a collection in a child does not write to the pages that it shares with the server
