"""Wide-ResNet with the sizes of Alpa's published measurements (OSDI 2022, table 7)."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.zoo.optimizers import OptimizerName, make_optimizer
from shardwright.zoo.steps import image_classification_step
from shardwright.zoo.target import Device, Target, build_module, image_batch

PUBLISHED_GLOBAL_BATCH = 1536

DEPTH_50 = (3, 4, 6, 3)
DEPTH_101 = (3, 4, 23, 3)

NormFactory = Callable[[int], nn.Module]
Activation = Callable[[torch.Tensor], torch.Tensor]


class Bottleneck(nn.Module):
    """A residual block: 1x1 to `channels`, 3x3 to `width` x `channels`, 1x1 to 4 x `channels`.

    Args:
        inputs: Input channels.
        channels: Base channels of the block.
        width: Factor on the channels of the 3x3 convolution.
        stride: Stride of the 3x3 convolution and of the projection.
        norm: Makes the normalisation of so many channels.
        activation: Applied after the first, the second and the sum.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        *,
        width: int,
        stride: int,
        norm: NormFactory,
        activation: Activation,
    ) -> None:
        """Creates three convolutions and, where the shape changes, a projection."""
        super().__init__()
        inner, outputs = channels * width, channels * 4
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = norm(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm3 = norm(outputs)
        self.activation = activation
        self.projection: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.projection = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, inputs, h, w]` to `[batch, 4 x channels, h / stride, w / stride]`."""
        y = self.activation(self.norm1(self.conv1(x)))
        y = self.activation(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return self.activation(y + self.projection(x))


class WideResNet(nn.Module):
    """A residual network for images.

    Args:
        stage_blocks: Number of blocks of each stage; each stage but the first halves the image.
        channels: Base channels of the first stage; each stage doubles them.
        width: Factor on the channels of the 3x3 convolutions.
        num_classes: Number of outputs.
        image_channels: Channels of the input.
        norm: Makes the normalisation of so many channels.
        activation: The non-linearity.
    """

    def __init__(
        self,
        *,
        stage_blocks: Sequence[int],
        channels: int,
        width: int,
        num_classes: int,
        image_channels: int = 3,
        norm: NormFactory = nn.BatchNorm2d,
        activation: Activation = F.relu,
    ) -> None:
        """Creates stem, stages and classifier."""
        super().__init__()
        self.stem = nn.Conv2d(image_channels, channels, 7, stride=2, padding=3, bias=False)
        self.stem_norm = norm(channels)
        self.activation = activation
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks: list[nn.Module] = []
        inputs = channels
        for stage, num_blocks in enumerate(stage_blocks):
            for index in range(num_blocks):
                blocks.append(
                    Bottleneck(
                        inputs,
                        channels << stage,
                        width=width,
                        stride=2 if stage > 0 and index == 0 else 1,
                        norm=norm,
                        activation=activation,
                    )
                )
                inputs = (channels << stage) * 4
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Linear(inputs, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps images `[batch, channels, height, width]` to logits `[batch, classes]`."""
        x = self.pool(self.activation(self.stem_norm(self.stem(images))))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits


def wide_resnet(
    *,
    channels: int,
    width: int,
    stage_blocks: Sequence[int] = DEPTH_50,
    image_size: int = 224,
    num_classes: int = 1024,
    batch_size: int = 64,
    optimizer: OptimizerName = "sgd",
    lr: float = 0.1,
    device: Device = "meta",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Target:
    """Returns a Wide-ResNet training step and its arguments `(model, optimizer, images, labels)`.

    The optimizer is the published one, SGD with Nesterov momentum; `adamw` is the other choice.
    """
    model = build_module(
        lambda: WideResNet(
            stage_blocks=stage_blocks, channels=channels, width=width, num_classes=num_classes
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


# The default batch is one published microbatch; the whole is `batch_size=PUBLISHED_GLOBAL_BATCH`
# (1520 for the 101-layer network). Two networks are called 13B in the published material: the one
# that was measured has 50 layers and width 32, the one that the final repository lists has 101
# layers and width 16.
wide_resnet_250m = partial(wide_resnet, channels=160, width=2)
wide_resnet_500m = partial(wide_resnet, channels=224, width=2)
wide_resnet_1b = partial(wide_resnet, channels=320, width=2)
wide_resnet_2b = partial(wide_resnet, channels=448, width=2)
wide_resnet_4b = partial(wide_resnet, channels=640, width=2, batch_size=48)
wide_resnet_6_8b = partial(wide_resnet, channels=320, width=16, batch_size=48)
wide_resnet_13b_depth_50 = partial(wide_resnet, channels=320, width=32, batch_size=40)
wide_resnet_13b_depth_101 = partial(
    wide_resnet, stage_blocks=DEPTH_101, channels=320, width=16, batch_size=40
)

wide_resnet_tiny = partial(
    wide_resnet,
    stage_blocks=(1, 1),
    channels=8,
    width=2,
    image_size=32,
    num_classes=16,
    batch_size=16,
    device="cpu",
)
