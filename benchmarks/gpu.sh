#!/usr/bin/env bash
# On a machine with an NVIDIA driver: GPT-2 124M in bfloat16 and the rows (a) to (d), (g), (i) of the benchmark, beside
# PyTorch. It takes MINUTES at most: what does not fit any more is left out, and said to be.
#
#   benchmarks/gpu.sh                          .venv if it is there, else makes .venv-gpu by pip
#   benchmarks/gpu.sh --venv=DIR               this environment, as it is: TensorFlow, Model Garden, PyTorch
#   benchmarks/gpu.sh --torch_python=PATH      PyTorch from this interpreter's environment, whose CUDA may be another
#   benchmarks/gpu.sh --wheels=DIR             makes .venv-gpu from these wheels, without a network
#   benchmarks/gpu.sh --minutes=8 --results=gpu-results
#   benchmarks/gpu.sh --dry_run                says what it would run; needs no GPU
#   benchmarks/gpu.sh --tiny                   runs GPT-2's part on the CPU, small: whether it works, not how fast
set -u
cd "$(dirname "$0")/.." || exit 1

venv='' wheels='' torch_python='' minutes=8 results=gpu-results dry_run='' tiny=''
for argument in "$@"; do
  case $argument in
    --venv=*) venv=${argument#*=} ;;
    --torch_python=*) torch_python=${argument#*=} ;;
    --wheels=*) wheels=${argument#*=} ;;
    --minutes=*) minutes=${argument#*=} ;;
    --results=*) results=${argument#*=} ;;
    --dry_run) dry_run=yes ;;
    --tiny) tiny=yes ;;
    --help | -h) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "error: $argument: no such option; there are --venv, --torch_python, --wheels, --minutes, --results, --dry_run, --tiny" >&2
      exit 2 ;;
  esac
done
case $minutes in '' | *[!0-9]*) echo "error: --minutes=$minutes: must be a whole number" >&2; exit 2 ;; esac
if [ -n "$venv" ] && [ ! -x "$venv/bin/python" ]; then
  echo "error: --venv=$venv: has no bin/python" >&2; exit 2
fi
if [ -n "$torch_python" ] && [ ! -x "$torch_python" ]; then
  echo "error: --torch_python=$torch_python: no such program" >&2; exit 2
fi
if [ -n "$wheels" ] && [ ! -d "$wheels" ]; then
  echo "error: --wheels=$wheels: no such folder" >&2; exit 2
fi

status=0
left() { echo $((minutes * 60 - SECONDS)); }

# part NAME COMMAND...: runs it in the time that is left, if that is a quarter of a minute at least.
part() {
  local name=$1; shift
  if [ -n "$dry_run" ]; then echo "$name: $*"; return; fi
  if [ "$(left)" -lt 15 ]; then echo "== $name: left out, no time"; return; fi
  echo "== $name ($(left) s left)"
  timeout "$(left)" "$@" 2>"$results/$name.err" | tee "$results/$name.txt"
  local code=${PIPESTATUS[0]}
  if [ "$code" -eq 124 ]; then echo "== $name: stopped, no time"
  elif [ "$code" -ne 0 ]; then echo "== $name: failed with status $code"; tail -n 3 "$results/$name.err"; status=1; fi
}

if [ -z "$venv" ] && [ -z "$wheels" ] && [ -x .venv/bin/python ]; then venv=.venv; fi
[ -n "$dry_run" ] || mkdir -p "$results" || exit 1
if [ -z "$venv" ]; then
  venv=.venv-gpu
  from=(); [ -n "$wheels" ] && from=(--no-index --find-links "$wheels")
  part venv python3 -m venv "$venv"
  part install "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    ${from[@]+"${from[@]}"} --editable '.[gpu]' torch transformers safetensors tokenizers
fi
python=$venv/bin/python
[ -z "$torch_python" ] || export BENCH_TORCH_PYTHON=$torch_python

if [ -n "$tiny" ]; then
  part gpt2 env CUDA_VISIBLE_DEVICES= "$python" -m benchmarks.gpt2 --tiny --batch_size=2 --turns=1 --libraries=ours,torch
  exit "$status"
fi
if [ -z "$dry_run" ] && ! nvidia-smi >"$results/nvidia-smi.txt" 2>&1; then
  echo 'error: nvidia-smi: finds no GPU; --dry_run and --tiny need none' >&2; exit 2
fi
part devices "$python" -c "import tensorflow as tf; print('TensorFlow', tf.__version__, \
tf.config.list_physical_devices('GPU'))"
part torch "${torch_python:-$python}" -c "import torch; print('PyTorch', torch.__version__, torch.cuda.is_available())"
part attention env PYTHONPATH=. "$python" -m pytest -q -p no:xdist -k on_a_gpu tests/language/modeling/fused_attention_test.py
# Its programs take about a minute to compile.
part gpt2 "$python" -m benchmarks.gpt2 --turns=3 --seconds_allowed=180 --libraries=ours,ours_cudnn,torch,torch_compile

export BENCH_ON_GPU=1
peers() { part "$1" "$python" -m benchmarks.peers "$1" "--peers=$2" --rounds=3 --seconds=0.5; }
peers decoder ours_bf16,torch_bf16,torch_compile_bf16
peers digits_mlp stock,bare_xla_100_steps,torch_compile
peers digits_conv stock,torch
peers generation transformers
peers checkpoint ours_synchronous
peers decoder_24_layers ours_scan,torch
exit "$status"
