"""Imported once by the fork server: everything heavy that a run imports."""

from vlmrl.compat import ensure_torchvision

ensure_torchvision()

import accelerate.tracking  # noqa: E402, F401
import decord  # noqa: E402, F401
import torch  # noqa: E402
import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl  # noqa: E402, F401
from transformers import AutoModelForImageTextToText, AutoProcessor  # noqa: E402, F401
from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor  # noqa: E402, F401

import vlmrl.train.run  # noqa: E402, F401

torch.set_num_threads(1)
