#!/usr/bin/env python3
"""How far the reference libraries themselves, on a GPU, are from the fp32 CPU values committed beside this file.

    python3 deviation.py [cuda|cpu]

The errors are the ones of worker/src/parity.rs. Each case is guarded: a failure is printed and the next one runs.
"""

import copy
import json
import pathlib
import sys
import time
import traceback
import types

BEGAN = time.monotonic()
try:
    import diffusers  # noqa: F401
except Exception:
    sys.modules["diffusers"] = types.ModuleType("diffusers")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch  # noqa: E402
import make_reference as ref  # noqa: E402

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
HERE = pathlib.Path(__file__).resolve().parent


def norm(values):
    return sum(value * value for value in values) ** 0.5


def relative(ours, theirs):
    return norm([a - b for a, b in zip(ours, theirs)]) / norm(theirs)


def modes(tf32, benchmark=False):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = benchmark


def placed(tensor, kind, channels_last):
    tensor = tensor.to(DEVICE)
    if tensor.is_floating_point():
        tensor = tensor.to(kind)
        if channels_last and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def ready(model, kind, channels_last, attention):
    model = copy.deepcopy(model).to(DEVICE).to(kind)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    if attention:
        model.base.set_attn_implementation(attention)
    return model


def infer(name, model, reference, kind, tf32, attention=None):
    modes(tf32)
    model = ready(model, kind, False, attention).eval()
    inputs = [placed(tensor, kind, False) for _, tensor in ref.MODELS[name][1](1)[0]]
    with torch.no_grad():
        outputs = model.outputs(inputs)
    worst, each = 0.0, []
    for ours, theirs in zip(outputs, reference["infer"]["outputs"]):
        ours = ours.cpu().double().flatten()
        values = theirs["values"]
        picked = [ours[i * len(ours) // len(values)].item() for i in range(len(values))]
        pair = (abs(norm_of(ours) - theirs["norm"]) / theirs["norm"], relative(picked, values))
        each.append("norm %.2e values %.2e" % pair)
        worst = max(worst, *pair)
    return "outputs %.3e  (%s)" % (worst, "; ".join(each))


def norm_of(tensor):
    return torch.linalg.vector_norm(tensor.detach().double()).item()


def train(name, model, reference, kind=torch.float32, tf32=False, channels_last=False, benchmark=False, autocast=None,
          attention=None):
    modes(tf32, benchmark)
    model = ready(model, kind, channels_last, attention).train()
    inputs, target = ref.MODELS[name][1](2)
    inputs = [placed(tensor, kind, channels_last) for _, tensor in inputs]
    target = placed(target[1], kind, channels_last)
    optimiser = ref.TRAINED[name]
    rule = ref.SGD if optimiser is torch.optim.SGD else ref.ADAMW
    parameters = ref.named(model)
    before = {key: value.detach().clone() for key, value in parameters.items()}
    updater = optimiser(list(parameters.values()), **rule)
    losses, gradients = [], {}
    for step in range(3):
        updater.zero_grad()
        with torch.autocast(DEVICE, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = model.loss(inputs, target)
        loss.backward()
        if step == 0:
            gradients = {key: norm_of(value.grad) for key, value in parameters.items()}
        updater.step()
        losses.append(loss.item())
    want = reference["train"]
    names = list(parameters)
    theirs = [want["gradient-norms"][key] for key in names]
    ours = [gradients[key] for key in names]
    whole = norm(theirs)
    single = [(abs(a - b) / (b + 1e-3 * whole), key) for a, b, key in zip(ours, theirs, names)]
    single.sort(reverse=True)
    changed = [norm_of(parameters[key] - before[key]) for key in names]
    wanted = [want["change-norms"][key] for key in names]
    apart = [abs(a - b) / abs(b) for a, b in zip(losses, want["losses"])]
    # What of the error in the changes is whose: the share of its square.
    error = norm([a - b for a, b in zip(changed, wanted)]) or 1.0
    shares = sorted(((((a - b) / error) ** 2, key) for a, b, key in zip(changed, wanted, names)), reverse=True)
    return "losses %.3e  gradients %.3e  worst-gradient %.3e  changes %.3e  (losses %s; worst gradients %s; changes %s)" % (
        max(apart), relative(ours, theirs), single[0][0], relative(changed, wanted),
        " ".join("%.2e" % value for value in apart), ", ".join("%s %.2e" % (key, value) for value, key in single[:3]),
        ", ".join("%s %.0f%%" % (key, 100 * value) for value, key in shares[:3]))


def case(what, function, *args, **kinds):
    began = time.monotonic()
    try:
        result = function(*args, **kinds)
    except Exception as error:
        traceback.print_exc()
        result = "failed: %s: %s" % (type(error).__name__, error)
    print("%-58s %s  [%.1f s]" % (what, result, time.monotonic() - began), flush=True)


def load(name):
    try:
        return ref.build(ref.MODELS[name][0]), json.loads((HERE / (name + ".json")).read_text())
    except Exception:
        traceback.print_exc()
        print(name, "could not be built", flush=True)
        return None


F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def main():
    wanted = sys.argv[2:] or ["resnet18", "bert-base", "bert-large"]
    print("torch", torch.__version__, "transformers", ref.transformers.__version__, "torchvision",
          ref.torchvision.__version__, "on", torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE, flush=True)
    if "resnet18" in wanted and (got := load("resnet18")):
        for benchmark in (False, True):
            for channels_last in (True, False):
                what = "resnet18 train fp32 %s benchmark=%s" % (
                    "channels-last" if channels_last else "contiguous", benchmark)
                for _ in range(2):
                    case(what, train, "resnet18", *got, channels_last=channels_last, benchmark=benchmark)
        case("resnet18 train tf32 channels-last", train, "resnet18", *got, tf32=True, channels_last=True)
        case("resnet18 train fp64 contiguous (the CPU values' own error)", train, "resnet18", *got, kind=F64)
    if "bert-base" in wanted and (got := load("bert-base")):
        case("bert-base train fp32", train, "bert-base", *got)
        case("bert-base train fp32 again", train, "bert-base", *got)
        case("bert-base train fp32 eager attention", train, "bert-base", *got, attention="eager")
        case("bert-base train fp64 (the CPU values' own error)", train, "bert-base", *got, kind=F64)
        case("bert-base train tf32", train, "bert-base", *got, tf32=True)
        case("bert-base train bf16 autocast", train, "bert-base", *got, autocast=BF16)
        case("bert-base train bf16 autocast eager attention", train, "bert-base", *got, autocast=BF16, attention="eager")
        case("bert-base infer bf16", infer, "bert-base", *got, BF16, False)
    if "bert-large" in wanted and (got := load("bert-large")):
        case("bert-large infer fp32", infer, "bert-large", *got, F32, False)
        case("bert-large infer tf32", infer, "bert-large", *got, F32, True)
        case("bert-large infer tf32 eager attention", infer, "bert-large", *got, F32, True, attention="eager")
        case("bert-large infer bf16", infer, "bert-large", *got, BF16, False)
        case("bert-large infer bf16 eager attention", infer, "bert-large", *got, BF16, False, attention="eager")
        case("bert-large infer fp16", infer, "bert-large", *got, F16, False)
    print("took %.0f s" % (time.monotonic() - BEGAN), flush=True)


if __name__ == "__main__":
    main()
