"""Vision Transformer with the sizes ViT-B/16 and ViT-L/16."""

from functools import partial

import torch
from torch import nn

from shardwright.zoo.optimizers import OptimizerName, make_optimizer
from shardwright.zoo.steps import image_classification_step
from shardwright.zoo.target import Device, Target, build_module, image_batch
from shardwright.zoo.transformer import Block, FeedForward, init_transformer_weights


class ViT(nn.Module):
    """An image classifier that attends over patches and one class token.

    Args:
        image_size: Height and width of the image, a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        hidden: Width.
        layers: Number of blocks.
        heads: Number of heads.
        num_classes: Number of outputs.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        hidden: int,
        layers: int,
        heads: int,
        num_classes: int,
    ) -> None:
        """Creates patch embedding, class token, positions, blocks, final norm and head."""
        super().__init__()
        if image_size % patch_size:
            raise ValueError(
                f"image_size {image_size} is not a multiple of patch_size {patch_size}"
            )
        num_patches = (image_size // patch_size) ** 2
        self.patch_embedding = nn.Conv2d(3, hidden, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.position_embedding = nn.Parameter(torch.empty(1, num_patches + 1, hidden))
        self.layers = nn.ModuleList(
            Block(hidden, heads, FeedForward(hidden, 4 * hidden), causal=False)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, num_classes)
        self.apply(init_transformer_weights)
        nn.init.normal_(self.position_embedding, std=0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps images `[batch, 3, height, width]` to logits `[batch, classes]`."""
        patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(images.shape[0], -1, -1)
        x = torch.cat((class_token, patches), dim=1) + self.position_embedding
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x)[:, 0])
        return logits


def vit(
    *,
    hidden: int,
    layers: int,
    heads: int,
    image_size: int = 224,
    patch_size: int = 16,
    num_classes: int = 1000,
    batch_size: int = 256,
    optimizer: OptimizerName = "adamw",
    lr: float = 3e-4,
    device: Device = "meta",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Target:
    """Returns a ViT training step and its arguments `(model, optimizer, images, labels)`.

    Half-precision parameters come with `MixedPrecisionAdamW`, fp32 and fp64 ones with AdamW.
    """
    model = build_module(
        lambda: ViT(
            image_size=image_size,
            patch_size=patch_size,
            hidden=hidden,
            layers=layers,
            heads=heads,
            num_classes=num_classes,
        ),
        device=device,
        dtype=dtype,
        seed=seed,
    )
    images, labels = image_batch(
        batch_size, 3, image_size, num_classes, device=device, dtype=dtype, seed=seed
    )
    step_optimizer = make_optimizer(model, optimizer, lr)
    return image_classification_step, (model, step_optimizer, images, labels)


# Source of the shapes: Dosovitskiy et al., ICLR 2021, table 1.
vit_b_16 = partial(vit, hidden=768, layers=12, heads=12)
vit_l_16 = partial(vit, hidden=1024, layers=24, heads=16)

vit_tiny = partial(
    vit,
    hidden=32,
    layers=2,
    heads=8,
    image_size=16,
    patch_size=4,
    num_classes=16,
    batch_size=8,
    lr=1e-2,
    device="cpu",
)
