#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that may have no Rust: tests, sanitizers, the battery,
# times and counters.
#
#   cargo xtask gpu-bundle          # where Rust is: gathers what this script runs into target/gpu
#   scripts/gpu.sh target/gpu OUT   # where the GPU is
#
# Needs a driver and NVRTC; the Python tests need torch, pytest and transformers. compute-sanitizer
# and ncu are used where they are, and what is missing is said.
set -uo pipefail
bin=$(cd "${1:?folder with what gpu-bundle gathers}" && pwd)
out=${2:?folder for the results}
steps=${3:-test python ort sanitize verify bench probe ladder profile}
mkdir -p "$out"
rm -f "$out/failed"
export MSDA_GPU=1 MSDA_PYTHON=${MSDA_PYTHON:-python3}
step() { # name command...
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$out/$name.log" 2>&1; then
        echo "ok      $name ($((SECONDS - start)) s)"
    else
        echo "FAILED  $name ($((SECONDS - start)) s): see $name.log"
        tail -5 "$out/$name.log"
        echo "$name" >>"$out/failed"
    fi
}
has() { [[ " $steps " == *" $1 "* ]]; }
there() { command -v "$1" >/dev/null || { echo "skipped $2: no $1"; return 1; }; }

# The workloads that the documents quote.
workloads=(detr-encoder bevformer-cross rt-detr-decoder detr-decoder seed seed-ring-uniform seed-b6h8)
others=(rf-detr-decoder d-fine-decoder mask2former bevformer-temporal bevformer-spatial dino-encoder
    dino-training rf-detr-training)

if has test; then
    step driver "$bin/driver" --test-threads=2
    step gpu-tests "$bin/gpu" --test-threads=2
    step ladder-tests "$bin/ladder" --nocapture
    step probe-tests "$bin/probes" --nocapture
    step bench-tests "$bin/bench" --test-threads=2
    step study-tests "$bin/study" --test-threads=2
    MSDA_BIN="$bin/msda" step cli "$bin/cli" --test-threads=2
    step plan "$bin/plan"
fi
# The checkout's package with the compiled part of the bundle: `msda bench` measures torch with it.
package=$(cd "$(dirname "$0")/../bindings/python" && pwd)
cp "$bin"/_native.* "$package/python/msda_attn/"
export PYTHONPATH=$package/python:$(cd "$(dirname "$0")" && pwd)
if has python; then
    if missing=$("$MSDA_PYTHON" -c "import torch, pytest, transformers" 2>&1 >/dev/null); then
        # For records/tested.jsonl: the versions of this machine.
        export MSDA_TESTED=$out/tested.jsonl
        step python "$MSDA_PYTHON" -m pytest --quiet -rs -p no:cacheprovider -p tested "$package/tests"
    else
        echo "skipped python: ${missing##*$'\n'}"
    fi
fi
if has ort; then
    # A test says that it skipped if this ONNX Runtime has no CUDA provider.
    tests=$(cd "$(dirname "$0")/../crates/msda-ort/tests" && pwd)
    MSDA_ORT=$bin/libmsda_ort.so step ort "$MSDA_PYTHON" -m pytest --quiet -rs -p no:cacheprovider "$tests"
fi
if has sanitize && there compute-sanitizer sanitize; then
    sanitize() { # tool, groups of the battery ("" for all), program, arguments
        MSDA_GROUPS=$2 compute-sanitizer --tool "$1" --error-exitcode 9 "${@:3}"
    }
    # One process per rung, many at a time: a sanitizer uses one core and little of the GPU.
    at_once() { while (($(jobs -rp | wc -l) >= ${SANITIZERS:-$(nproc)})); do wait -n; done; }
    # Slow tools run only the groups that reach every path of the kernels.
    some=layouts,points,types
    step memcheck sanitize memcheck "" "$bin/conformance" --test-threads=2 &
    step initcheck sanitize initcheck "" "$bin/conformance" --test-threads=2 &
    step racecheck sanitize racecheck $some "$bin/conformance" --test-threads=2 &
    # Both passes at sizes that fill the GPU: workspaces with guards, every way to sort, crowded
    # pixels, sums that are not finite, shapes of training.
    plans() { # tool, test...
        for test in "${@:2}"; do
            step "$1-$test" sanitize "$1" "" "$bin/gpu" --test-threads=1 "$test" &
        done
    }
    plans memcheck the_workspace_has bins_may decoders_in_training weights_may_be_large channels_may \
        gradients_of_tall_units
    plans racecheck all_samples_may bins_may channels_may gradients_of_tall_units
    for type in f64 f32 f16 bf16; do
        plans memcheck gradients_that_are_not_finite_in_$type
        plans racecheck gradients_that_are_not_finite_in_$type
    done
    # Levels resident in shared memory, kernels queued as one graph, sums that cancel.
    plans memcheck blocks_that_keep kernels_that kernels_for_one
    plans racecheck what_cancels
    for tool in racecheck memcheck; do
        for rung in $("$bin/msda-study" list --json | grep -o '"name": *"[^"]*"' | cut -d'"' -f4); do
            at_once
            MSDA_RUNGS=$rung step "$tool-$rung" sanitize $tool $some "$bin/ladder" &
        done
    done
    wait
fi
if has verify; then
    step verify "$bin/msda" verify --device cuda --seeds 1
fi
if has bench; then
    args=()
    for w in "${workloads[@]}" "${others[@]}"; do args+=(--workload "$w"); done
    step bench "$bin/msda" bench --engine cuda --engine cuda:half --engine cuda:fixed --engine cuda:atomic \
        "${args[@]}" --out "$out/bench"
    args=()
    for w in "${workloads[@]}"; do args+=(--workload "$w"); done
    step bench-beside "$bin/msda" bench --device cuda "${args[@]}" --out "$out/bench-beside"
fi
if has probe; then
    step probe "$bin/msda-study" probe --out "$out/probe"
fi
if has ladder; then
    step ladder-verify "$bin/msda-study" verify --out "$out/ladder-verify"
    step ladder-bench "$bin/msda-study" bench --out "$out/ladder-bench"
    mkdir -p "$out/ladder-analyze"
    step ladder-analyze "$bin/msda-study" analyze --workload seed --ladder --ncu --out "$out/ladder-analyze/record.json"
    has probe || step probe "$bin/msda-study" probe --out "$out/probe"
    # The claims, judged by these records.
    step ladder-claims "$bin/msda-study" claims --record "$out"
fi
if has profile && there ncu profile; then
    args=()
    for w in "${workloads[@]}" "${others[@]}"; do args+=(--workload "$w"); done
    step counters "$bin/msda-study" analyze "${args[@]}" --kernel chosen --ncu --out "$out/counters.json"
fi
[[ ! -e $out/failed ]]
