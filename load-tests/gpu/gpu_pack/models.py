"""FIKIT's twelve networks and a GPT-2, with random weights of a fixed seed. Nothing is downloaded.

The four detectors are torchvision's. The others are written here in plain PyTorch, with torchvision's shapes, so
that they need nothing else.
"""

import torch
from torch import nn
from torch.nn import functional

DETECTORS = ("maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "fcos_resnet50_fpn", "fasterrcnn_resnet50_fpn")
NAMES = (
    "fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101", "resnet50", "resnet101", "alexnet",
    "vgg16",
) + DETECTORS


class Bottleneck(nn.Module):
    """A residual block of three convolutions."""

    def __init__(self, wide_in, wide, stride, dilation, changes):
        super().__init__()
        out = 4 * wide
        self.body = nn.Sequential(
            nn.Conv2d(wide_in, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, dilation, dilation, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(wide_in, out, 1, stride, bias=False), nn.BatchNorm2d(out)
        ) if changes else nn.Identity()

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


def backbone(blocks, dilated=False):
    """ResNet's layers up to 2,048 channels; dilated ones keep an eighth of the picture's size."""
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]
    wide_in = 64
    for stage, count in enumerate(blocks):
        wide = 64 << stage
        stride = 1 if stage == 0 or (dilated and stage >= 2) else 2
        dilation = 2 ** (stage - 1) if dilated and stage >= 2 else 1
        for block in range(count):
            layers.append(Bottleneck(wide_in, wide, stride if block == 0 else 1, dilation, block == 0))
            wide_in = 4 * wide
    return nn.Sequential(*layers)


BLOCKS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3)}


def resnet(depth):
    return nn.Sequential(backbone(BLOCKS[depth]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Segmentation(nn.Module):
    """A dilated backbone, a head, and the picture's size again."""

    def __init__(self, depth, head):
        super().__init__()
        self.backbone, self.head = backbone(BLOCKS[depth], True), head

    def forward(self, x):
        return functional.interpolate(self.head(self.backbone(x)), x.shape[-2:], mode="bilinear", align_corners=False)


def fcn_head():
    return nn.Sequential(
        nn.Conv2d(2048, 512, 3, padding=1, bias=False), nn.BatchNorm2d(512), nn.ReLU(inplace=True), nn.Dropout(0.1),
        nn.Conv2d(512, 21, 1),
    )


class Pyramid(nn.Module):
    """DeepLab's atrous pyramid: five views of the image side by side."""

    def __init__(self):
        super().__init__()

        def view(size, dilation):
            return nn.Sequential(
                nn.Conv2d(2048, 256, size, padding=dilation if size == 3 else 0, dilation=dilation, bias=False),
                nn.BatchNorm2d(256), nn.ReLU(inplace=True),
            )

        self.views = nn.ModuleList([view(1, 1), view(3, 12), view(3, 24), view(3, 36)])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2048, 256, 1, bias=False), nn.ReLU(inplace=True))
        self.join = nn.Sequential(nn.Conv2d(1280, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(inplace=True))

    def forward(self, x):
        whole = functional.interpolate(self.whole(x), x.shape[-2:], mode="bilinear", align_corners=False)
        return self.join(torch.cat([view(x) for view in self.views] + [whole], 1))


def deeplab_head():
    return nn.Sequential(
        Pyramid(), nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU(inplace=True),
        nn.Conv2d(256, 21, 1),
    )


def alexnet():
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000),
    )


def vgg16():
    layers, wide_in = [], 3
    for wide, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(wide_in, wide, 3, padding=1), nn.ReLU(inplace=True)]
            wide_in = wide
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000),
    )


def network(name, device="cuda"):
    """Returns a network that only infers, and one task's input."""
    torch.manual_seed(18)
    if name in DETECTORS:
        from torchvision.models import detection

        # No weights are loaded, so none are fetched.
        net = getattr(detection, name)(weights=None, weights_backbone=None)
        data = [torch.rand(3, 480, 640)]
    else:
        kind, _, depth = name.partition("_resnet")
        if name in ("resnet50", "resnet101"):
            net, size = resnet(name[6:]), 224
        elif kind == "fcn":
            net, size = Segmentation(depth, fcn_head()), 520
        elif kind == "deeplabv3":
            net, size = Segmentation(depth, deeplab_head()), 520
        elif name in ("alexnet", "vgg16"):
            net, size = {"alexnet": alexnet, "vgg16": vgg16}[name](), 224
        else:
            raise ValueError("no network %r: use one of %s" % (name, ", ".join(NAMES)))
        data = torch.rand(1, 3, size, size)
    net = net.eval().to(device)
    data = [picture.to(device) for picture in data] if isinstance(data, list) else data.to(device)
    return net, data


class Attention(nn.Module):
    """Causal attention that keeps the keys and values of earlier tokens."""

    def __init__(self, wide, heads):
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)

    def forward(self, x, kept):
        batch, length, wide = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, wide // self.heads).transpose(1, 2) for part in self.into(x).chunk(3, -1)
        )
        if kept is not None:
            key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
        scores = query @ key.transpose(-1, -2) / (wide // self.heads) ** 0.5
        ahead = torch.ones(length, key.shape[2], dtype=torch.bool, device=x.device).triu(key.shape[2] - length + 1)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, wide)), (key, value)


class Block(nn.Module):
    """A transformer's block with the norms first."""

    def __init__(self, wide, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.attention = Attention(wide, heads)
        self.body = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(approximate="tanh"), nn.Linear(4 * wide, wide))

    def forward(self, x, kept):
        seen, kept = self.attention(self.first(x), kept)
        x = x + seen
        return x + self.body(self.second(x)), kept


class Gpt2(nn.Module):
    """GPT-2's smallest form: 12 blocks of 768."""

    def __init__(self, layers=12, wide=768, heads=12, words=50257, positions=1024):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, wide), nn.Embedding(positions, wide)
        self.blocks = nn.ModuleList([Block(wide, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(wide)

    def forward(self, tokens, kept):
        begin = 0 if kept[0] is None else kept[0][0].shape[2]
        places = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x, now = self.words(tokens) + self.positions(places), []
        for block, earlier in zip(self.blocks, kept):
            x, of_block = block(x, earlier)
            now.append(of_block)
        return self.norm(x[:, -1:]) @ self.words.weight.T, now

    def generate(self, tokens, count):
        """Returns so many more tokens, each the most likely one."""
        kept, made = [None] * len(self.blocks), []
        for _ in range(count):
            logits, kept = self(tokens, kept)
            tokens = logits[:, -1:].argmax(-1)[:, -1:]
            made.append(tokens)
        return torch.cat(made, 1), logits


def gpt2(device="cuda", **sizes):
    """Returns a GPT-2 and the beginning of a text."""
    torch.manual_seed(19)
    net = Gpt2(**sizes).eval().to(device)
    return net, torch.randint(0, net.words.num_embeddings, (2, 32), device=device)


def use_exact_arithmetic():
    """Lets the same program give the same bits each time, where its operations can."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
