#!/usr/bin/env python3
"""Makes the values that the worker's models are compared with, by the libraries that define those models.

    python3 -m venv venv
    venv/bin/pip install torch==2.11.0 torchvision==0.26.0 transformers==5.24.0 diffusers==0.42.1
    venv/bin/python make_reference.py [MODEL...]

Writes MODEL.json beside this file; each says which versions made it. Needs 8 GB of memory and some minutes on a CPU.
No weights are downloaded: parameters and inputs follow from their names (`unit` and `fill` below, and
worker/src/models/from_names.rs), so that both sides have the same bits. Everything is computed in fp32 on the CPU.

A file holds
  state    the names and shapes of the state dictionary
  infer    the inputs' shapes, and of each output its L2 norm and up to 32 evenly spaced values
  train    for one member of each family: the loss of three steps, each parameter's gradient norm in the first, and the
           norm of its change after the third
"""

import json
import math
import pathlib
import sys

import diffusers
import numpy as np
import torch
import torchvision
import transformers
from torch import nn

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SGD = {"lr": 1e-3, "momentum": 0.9}
ADAMW = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def words(name, count):
    """24 mixed bits for each index: splitmix64 started at the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))) >> np.uint64(40)


def unit(name, shape):
    """Values in [-1, 1), exact in fp32."""
    flat = words(name, math.prod(shape)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return torch.from_numpy(flat.reshape(shape))


def fill(name, tensor):
    """Gives a parameter or buffer the values that follow from its name and shape."""
    if not tensor.is_floating_point():
        return
    shape = tuple(tensor.shape)
    if len(shape) >= 2:
        inputs = shape[-1] if len(shape) == 3 else math.prod(shape[1:])
        offset, scale = 0.0, math.sqrt(1.5 / inputs)
    elif name.endswith("running_var"):
        offset, scale = 1.0, 0.5
    elif name.endswith("running_mean"):
        offset, scale = 0.0, 0.1
    elif name.endswith("weight"):
        offset, scale = 1.0, 0.1
    else:
        offset, scale = 0.0, 0.05
    with torch.no_grad():
        tensor.copy_(unit(name, shape) * np.float32(scale) + np.float32(offset))


def real(name, shape):
    return {"shape": list(shape)}, unit(name, shape) * np.float32(1.75)


def index(name, shape, below):
    flat = (words(name, math.prod(shape)) * np.uint64(below)) >> np.uint64(24)
    return {"shape": list(shape), "below": below}, torch.from_numpy(flat.astype(np.int64).reshape(shape))


class Encoder(nn.Module):
    """An encoder, and the head that the worker adds for training."""

    def __init__(self, base, width):
        super().__init__()
        self.base, self.classifier = base, nn.Linear(width, 2)

    def outputs(self, inputs):
        kinds = {"token_type_ids": inputs[1]} if len(inputs) > 1 else {}
        got = self.base(input_ids=inputs[0], **kinds)
        pooled = getattr(got, "pooler_output", None)
        return [got.last_hidden_state] + ([pooled] if pooled is not None else [])

    def loss(self, inputs, target):
        *_, last = self.outputs(inputs)
        pooled = last if last.dim() == 2 else last[:, 0]
        return nn.functional.cross_entropy(self.classifier(pooled), target)


class Vision(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def outputs(self, inputs):
        return [self.base(inputs[0])]

    def loss(self, inputs, target):
        return nn.functional.cross_entropy(self.base(inputs[0]), target)


class Denoiser(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def outputs(self, inputs):
        context = {"encoder_hidden_states": inputs[2]} if len(inputs) > 2 else {}
        return [self.base(inputs[0], inputs[1], **context).sample]

    def loss(self, inputs, target):
        return nn.functional.mse_loss(self.outputs(inputs)[0], target)


def bert(**sizes):
    config = transformers.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, **sizes)
    return Encoder(transformers.BertModel(config), config.hidden_size)


def distilbert():
    config = transformers.DistilBertConfig(dropout=0, attention_dropout=0)
    return Encoder(transformers.DistilBertModel(config), config.dim)


def roberta():
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )
    return Encoder(transformers.RobertaModel(config), config.hidden_size)


def sd15():
    return Denoiser(diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768))


def ddpm():
    return Denoiser(diffusers.UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, block_out_channels=(128, 256, 256, 256), layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=None, downsample_padding=0, flip_sin_to_cos=False, freq_shift=1, norm_eps=1e-6,
    ))


def images(batch):
    return [real("input.0", (batch, 3, 224, 224))], index("target", (batch,), 1000)


def tokens(batch, vocabulary, kinds):
    # Indices start at 4, past the vocabularies' padding; the worker's rule adds the same.
    spec, ids = index("input.0", (batch, 16), vocabulary - 4)
    inputs = [({**spec, "from": 4}, ids + 4)]
    if kinds:
        inputs.append(index("input.1", (batch, 16), kinds))
    return inputs, index("target", (batch,), 2)


def latents(batch, channels, size, context):
    shape = (batch, channels, size, size)
    inputs = [real("input.0", shape), index("input.1", (batch,), 1000)]
    if context:
        inputs.append(real("input.2", (batch, *context)))
    return inputs, real("target", shape)


VISION = {name.replace("_", "-"): name for name in
          ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vit_b_16", "vit_l_16"]}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MODELS = {
    **{ours: (lambda theirs=theirs: Vision(getattr(torchvision.models, theirs)()), images)
       for ours, theirs in VISION.items()},
    "bert-base": (bert, lambda batch: tokens(batch, 30522, 2)),
    "bert-large": (lambda: bert(**LARGE), lambda batch: tokens(batch, 30522, 2)),
    "distilbert": (distilbert, lambda batch: tokens(batch, 30522, 0)),
    "roberta-base": (roberta, lambda batch: tokens(batch, 50265, 1)),
    "sd15-unet": (sd15, lambda batch: latents(batch, 4, 16, (77, 768))),
    "ddpm-unet": (ddpm, lambda batch: latents(batch, 3, 32, None)),
}
TRAINED = {"resnet18": torch.optim.SGD, "vit-b-16": torch.optim.SGD,
           "bert-base": torch.optim.AdamW, "ddpm-unet": torch.optim.AdamW}


def number(value):
    return float(f"{value.item():.9g}")


def norm(tensor):
    return number(torch.linalg.vector_norm(tensor.detach().double()))


def samples(tensor):
    flat = tensor.detach().flatten()
    count = min(32, flat.numel())
    return [number(flat[i * flat.numel() // count]) for i in range(count)]


def named(model):
    """Parameters under the worker's names: the base's own, and the head's."""
    own = dict(model.base.named_parameters())
    if hasattr(model, "classifier"):
        own |= {f"classifier.{name}": value for name, value in model.classifier.named_parameters()}
    return own


def build(make):
    torch.manual_seed(0)
    model = make()
    for name, tensor in model.base.state_dict().items():
        fill(name, tensor)
    if hasattr(model, "classifier"):
        for name, tensor in model.classifier.state_dict().items():
            fill(f"classifier.{name}", tensor)
    return model


def infer(model, batch):
    inputs, _ = batch(1)
    model.eval()
    with torch.no_grad():
        outputs = model.outputs([tensor for _, tensor in inputs])
    return {
        "inputs": [spec for spec, _ in inputs],
        "outputs": [{"norm": norm(output), "values": samples(output)} for output in outputs],
    }


def train(model, batch, optimiser):
    inputs, target = batch(2)
    model.train()
    parameters = named(model)
    before = {name: value.detach().clone() for name, value in parameters.items()}
    rule = SGD if optimiser is torch.optim.SGD else ADAMW
    updater = optimiser(list(parameters.values()), **rule)
    losses, gradients = [], {}
    for step in range(3):
        updater.zero_grad()
        loss = model.loss([tensor for _, tensor in inputs], target[1])
        loss.backward()
        if step == 0:
            gradients = {name: norm(value.grad) for name, value in parameters.items()}
        updater.step()
        losses.append(number(loss))
    return {
        "inputs": [spec for spec, _ in inputs],
        "target": target[0],
        "learning-rate": rule["lr"],
        "losses": losses,
        "gradient-norms": gradients,
        "change-norms": {name: norm(value - before[name]) for name, value in parameters.items()},
    }


def main():
    versions = {lib.__name__: lib.__version__ for lib in (torch, torchvision, transformers, diffusers)}
    for name in sys.argv[1:] or MODELS:
        make, batch = MODELS[name]
        model = build(make)
        state = {key: list(value.shape) for key, value in model.base.state_dict().items()}
        result = {"model": name, "versions": versions, "state": state, "infer": infer(model, batch)}
        if name in TRAINED:
            result["train"] = train(model, batch, TRAINED[name])
        path = pathlib.Path(__file__).with_name(f"{name}.json")
        path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
        print(f"{name}: {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
