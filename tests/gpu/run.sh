#!/usr/bin/env bash
# The checks that need a GPU, in stages, for a machine that has PyTorch 2.11 and nothing else of migperf's.
#
#   cargo xtask carry                      # here: fills .carry/
#   .carry/tests/gpu/run.sh STAGE OUTPUT   # there, from any folder
#
# Stages: check, parity, article, ready, kill, peer, empty, nvml, helper (root). Each leaves its files in OUTPUT and prints what it found. A stage
# whose check fails makes the script fail, after the others have run. Nothing here changes a GPU's settings.
set -uo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
output=${*: -1}
stages=("${@:1:$#-1}")
mkdir -p "$output"
export MIGPERF_BIN_DIR="$here/bin"
export MIGPERF_STATE_DIRECTORY="${MIGPERF_STATE_DIRECTORY:-/tmp/migperf-gpu-tests}"
ctl="$MIGPERF_BIN_DIR/migperfctl"
python=${PYTHON:-python3}
torch=${MIGPERF_LIBTORCH:-$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')/lib}
export MIGPERF_LIBTORCH="$torch"
failed=()

# What a run may not leave behind.
leftovers() {
    pgrep -fa 'migperf-worker-torch|nvidia-cuda-mps' || true
}

stage_check() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current,power.limit --format=csv,noheader
    "$ctl" --local check
}

stage_parity() {
    LD_LIBRARY_PATH="$torch" timeout 280 "$MIGPERF_BIN_DIR/migperf-worker-torch" \
        --parity "$here/tests/parity" --device cuda --precision all | tee "$output/parity.txt"
}

stage_article() {
    "$ctl" --local run "$here/tests/gpu/article-short.toml" --output "$output/article"
}

stage_ready() {
    "$ctl" --local run "$here/tests/gpu/ready.toml" --output "$output/ready" > /dev/null || return
    "$python" - "$output/ready/report.json" <<'P'
import json, sys
report = json.load(open(sys.argv[1]))
worst = 0
for trial in report["trials"]:
    skew = trial["window"]["start_skew_us"]["value"] if trial.get("window") else None
    ready = [round(m["ready_s"], 2) for m in trial["members"]]
    print(trial["name"], "| start skew us:", skew, "| ready s:", ready)
P
}

# The daemon is killed in the middle of an MPS cohort of four: nothing may be left running.
stage_kill() {
    "$ctl" --local run --model resnet18 --task train --batch 32 --sharing mps --workers 4 --window 3s --settle 1s > "$output/kill.txt" 2>&1 &
    local client=$! workers=0
    for _ in $(seq 240); do
        sleep 0.5
        workers=$(pgrep -c -x migperf-worker- || true)
        [ "$workers" -ge 4 ] && pgrep -f nvidia-cuda-mps-server > /dev/null && break
    done
    echo "before the kill: $workers workers and $(pgrep -fc nvidia-cuda-mps) MPS programs"
    sleep 2
    pkill -9 -x migperfd
    sleep 3
    wait "$client"
    echo "the client ended with status $?"
    if [ -n "$(leftovers)" ]; then
        echo "left running:"
        leftovers
        return 1
    fi
    echo "after the kill: nothing is left running"
    "$ctl" --local list
    [ "$workers" -ge 4 ]
}

# The worker against another implementation of the same work, in turn, in one run: medians, and the ratio of each pair.
stage_peer() {
    local peer="$here/bin/tch_probe"
    [ -x "$peer" ] || { echo "$peer is not there: not run"; return 1; }
    export LD_LIBRARY_PATH="$torch"
    "$python" "$here/tests/gpu/peer.py" "$MIGPERF_BIN_DIR/migperf-worker-torch" "$peer" | tee "$output/peer.txt"
}

# A workload that does nothing: what is left of a batch is the harness.
stage_empty() {
    "$ctl" --local run --model empty --task infer --batch 1 --sharing exclusive --window 500ms --settle 500ms --output "$output/empty" > /dev/null || return
    "$python" - "$output/empty/report.csv" <<'P'
import csv, sys
for row in csv.DictReader(open(sys.argv[1])):
    print({key: value for key, value in row.items() if "latency" in key or "samples" in key or key in ("row", "trial")})
    break
P
}

# The real NVML against what another of its kind answered, and against what nvidia-smi prints now.
stage_nvml() {
    NVML_UNDER_TEST=libnvidia-ml.so.1 "$here/bin/test-nvml-answers" --test-threads 1 2>&1 | tee "$output/nvml.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || return
    local list
    for list in -lgip -lgipp -lgi -lci; do
        nvidia-smi mig $list > "$output/smi$list.txt" 2>&1
        "$here/bin/nvml-sim-smi" mig $list > "$output/ours$list.txt" || return
        diff "$output/smi$list.txt" "$output/ours$list.txt" || { echo "mig $list: not as nvidia-smi prints it"; return 1; }
        echo "mig $list: byte for byte as nvidia-smi prints it"
    done
}

# A real MPS control daemon through the root helper: percentages, memory limit, three signs, and kills.
stage_helper() {
    MIGPERF_HELPER="$here/bin/migperf-helper" MIGPERF_LAUNCHER="$here/bin/migperf-worker" \
        MIGPERF_MPS_CLIENT="$here/tests/gpu/mps_client.py" \
        "$here/bin/test-helper-gpu" --ignored --nocapture 2>&1 | tee "$output/helper.txt"
    return "${PIPESTATUS[0]}"
}

for stage in "${stages[@]}"; do
    echo "== $stage"
    began=$SECONDS
    "stage_$stage" 2> >(tee -a "$output/$stage.err" >&2) || failed+=("$stage")
    echo "== $stage took $((SECONDS - began)) s"
done
cp "$MIGPERF_STATE_DIRECTORY"/migperf.sqlite3* "$output/" 2> /dev/null
cp "$MIGPERF_STATE_DIRECTORY/migperfd.log" "$output/" 2> /dev/null
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
echo "all stages passed"
