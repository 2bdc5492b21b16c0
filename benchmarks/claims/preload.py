"""Everything that a run of the claims benchmark imports, imported once: runs are forked from the process that has done so."""

import importlib

for _name in (
    "vlmrl.cli",
    "vlmrl.run.start",
    "vlmrl.run.evaluate",
    "vlmrl.extras.toy.base",
    "vlmrl.evals.score.summary",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.processing_auto",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "transformers.models.qwen2.tokenization_qwen2",
    "transformers.models.qwen2_vl.video_processing_qwen2_vl",
    "transformers.models.qwen2_vl.image_processing_qwen2_vl",
    "safetensors.torch",
    "torch.optim.adamw",
    "av.video.reformatter",
):
    importlib.import_module(_name)

importlib.import_module("vlmrl.methods").registries()
