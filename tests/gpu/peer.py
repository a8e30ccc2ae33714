"""Times the worker and another program on the same work, alternating, and prints the ratio of each pair of medians.

    peer.py WORKER PROBE [ROUNDS]

PROBE is a program that takes the options of this file's CASES and prints a line of JSON with p50_ms.
"""

import json
import statistics
import subprocess
import sys

# (worker: model, task, batch, precision, further), (probe's options), batches. Short batches need many: a GPU that was idle
# takes a second to reach its clocks.
CASES = [
    # PyTorch's default lets convolutions use TF32, which our fp32 forbids: both sides are told to use it.
    (("resnet18", "infer", "1", "tf32", "contiguous"), "--model resnet18 --mode infer --batch 1 --tf32", 3000),
    (("resnet18", "train", "32", "tf32", "contiguous"), "--model resnet18 --mode train --batch 32 --tf32", 100),
    (("resnet50", "infer", "32", "bf16"), "--model resnet50 --mode infer --batch 32 --dtype bf16 --channels-last", 200),
    (("resnet50", "train", "32", "tf32", "contiguous"), "--model resnet50 --mode train --batch 32 --tf32", 60),
    (("bert-base", "infer", "32", "bf16"), "--model bert --mode infer --batch 32 --dtype bf16", 200),
    (("bert-base", "train", "32", "bf16"), "--model bert --mode train --batch 32 --dtype bf16 --amp", 60),
    (("vit-b-16", "infer", "32", "bf16"), "--model vit --mode infer --batch 32 --dtype bf16", 200),
]


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return json.loads(result.stdout.strip().splitlines()[-1])["p50_ms"]


def main():
    worker, probe = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    print(f"{'case':40} {'worker ms':>10} {'probe ms':>10} {'ratio':>7}  spread")
    for (model, task, batch, precision, *more), options, batches in CASES:
        ours, theirs, ratios = [], [], []
        for _ in range(rounds):
            a = run([worker, "--bench", "cuda", model, task, batch, precision, str(batches), *more])
            b = run([probe, "--device", "cuda:0", *options.split(), "--iters", str(batches), "--warmup", str(max(20, batches // 5))])
            ours.append(a)
            theirs.append(b)
            ratios.append(a / b)
        name = f"{model} {task} b{batch} {precision} {' '.join(more)}"
        print(
            f"{name:40} {statistics.median(ours):10.3f} {statistics.median(theirs):10.3f}"
            f" {statistics.median(ratios):7.3f}  {min(ratios):.3f}-{max(ratios):.3f}"
        )


if __name__ == "__main__":
    main()
