"""Fast-dLLM v2: a block diffusion model made from Qwen2.5 that predicts one position ahead.

The state at position i − 1 predicts token i. At a block's first position that is the last state of the block
before, which is finished and does not see the block. Blocks are counted from a row's first token.
"""

from __future__ import annotations

from typing import Any

from dtm.errors import CheckpointError, require
from dtm.models.families.base import STANDARD, UNSCALED, Family, HubConfig, standard, written
from dtm.models.families.dream import DREAM
from dtm.models.shape import TransformerConfig

_HARMLESS = ("conplemenrary_mask",)  # spelled so in the published files; of training alone


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a configuration of Fast-dLLM v2."""
    config.require_supported(UNSCALED, (*STANDARD, "bd_size", *_HARMLESS))
    return TransformerConfig(
        **standard(config),
        qkv_bias=True,
        shift=1,
        attention_block=config.integer("bd_size"),
        block_origin="token",
        family="fast_dllm",
    )


def write_config(shape: TransformerConfig) -> dict[str, Any]:
    """Make the hub's configuration of a shape."""
    require(
        shape.qkv_bias and shape.shift == 1 and shape.rows == shape.vocab_size,
        "this shape is not one of fast_dllm: biases, shift or rows of the embedding",
        CheckpointError,
    )
    return {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        **written(shape),
        "bd_size": shape.attention_block,
    }


FAST_DLLM = Family(
    name="fast_dllm",
    model_type="Fast_dLLM_Qwen",
    read=read_config,
    modules=DREAM.modules,
    write=write_config,
    leaves_out=True,
    attention="block",
    usual_mask=151665,
    usual_block=32,
    models="Fast_dLLM_v2_{1.5B,7B}",
    limits="blocks are decoded as a whole, not in the published sub-blocks of 8 tokens",
)
