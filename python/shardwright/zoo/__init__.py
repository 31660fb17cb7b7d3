"""Training steps to plan and to test with; each target is called to get `(step, args)`.

`shardwright plan --target shardwright.zoo:gpt_1_3b` names one of them. The published sizes live on
the meta device; the `tiny` and `integer` ones are real, small and seeded.
"""

from shardwright.zoo.gpt import PUBLISHED_GLOBAL_BATCH as GPT_PUBLISHED_GLOBAL_BATCH
from shardwright.zoo.gpt import (
    gpt,
    gpt_1_3b,
    gpt_2_6b,
    gpt_6_7b,
    gpt_15b,
    gpt_39b,
    gpt_76b,
    gpt_125m,
    gpt_350m,
    gpt_760m,
    gpt_tiny,
)
from shardwright.zoo.integer import gpt_integer, mlp_integer, wide_resnet_integer
from shardwright.zoo.llama import llama, llama3_8b, llama_tiny
from shardwright.zoo.mlp import mlp, mlp_tiny
from shardwright.zoo.moe import PUBLISHED_GLOBAL_BATCH as MOE_PUBLISHED_GLOBAL_BATCH
from shardwright.zoo.moe import (
    moe,
    moe_1_3b,
    moe_2_4b,
    moe_10b,
    moe_27b,
    moe_70b,
    moe_380m,
    moe_690m,
    moe_tiny,
)
from shardwright.zoo.optimizers import MixedPrecisionAdamW
from shardwright.zoo.vit import vit, vit_b_16, vit_l_16, vit_tiny
from shardwright.zoo.wide_resnet import PUBLISHED_GLOBAL_BATCH as WIDE_RESNET_PUBLISHED_GLOBAL_BATCH
from shardwright.zoo.wide_resnet import (
    wide_resnet,
    wide_resnet_1b,
    wide_resnet_2b,
    wide_resnet_4b,
    wide_resnet_6_8b,
    wide_resnet_13b_depth_50,
    wide_resnet_13b_depth_101,
    wide_resnet_250m,
    wide_resnet_500m,
    wide_resnet_tiny,
)

__all__ = [
    "GPT_PUBLISHED_GLOBAL_BATCH",
    "MOE_PUBLISHED_GLOBAL_BATCH",
    "WIDE_RESNET_PUBLISHED_GLOBAL_BATCH",
    "MixedPrecisionAdamW",
    "gpt",
    "gpt_1_3b",
    "gpt_2_6b",
    "gpt_6_7b",
    "gpt_15b",
    "gpt_39b",
    "gpt_76b",
    "gpt_125m",
    "gpt_350m",
    "gpt_760m",
    "gpt_integer",
    "gpt_tiny",
    "llama",
    "llama3_8b",
    "llama_tiny",
    "mlp",
    "mlp_integer",
    "mlp_tiny",
    "moe",
    "moe_1_3b",
    "moe_2_4b",
    "moe_10b",
    "moe_27b",
    "moe_70b",
    "moe_380m",
    "moe_690m",
    "moe_tiny",
    "vit",
    "vit_b_16",
    "vit_l_16",
    "vit_tiny",
    "wide_resnet",
    "wide_resnet_1b",
    "wide_resnet_2b",
    "wide_resnet_4b",
    "wide_resnet_6_8b",
    "wide_resnet_13b_depth_50",
    "wide_resnet_13b_depth_101",
    "wide_resnet_250m",
    "wide_resnet_500m",
    "wide_resnet_integer",
    "wide_resnet_tiny",
]
