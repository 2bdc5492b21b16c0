"""Models that no family here knows are refused with one line, before anything else is read of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig

from vlmrl.errors import ConfigError
from vlmrl.policy.load import load_processor


@pytest.mark.parametrize("model_type", ["qwen3_5_moe", "gemma3", "minicpmv4_6", "internvl"])
def test_an_unknown_model_type_is_a_config_error(model_type: str, tmp_path: Path) -> None:
    """MiniCPM-V's processor has other attributes than Qwen's; asking for them must not be the first thing that fails."""
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"is a '{model_type}' model; supported: qwen2_vl, qwen2_5_vl, qwen3_vl"):
        load_processor(str(tmp_path))
