#!/usr/bin/env bash
# Every program of a folder on one GPU, for at most SECONDS (540): replay_all.sh FOLDER [SECONDS]. It needs JAX 0.11, and
# no TensorFlow. One line of JSON for each measurement, into $OUT/replay.jsonl.
set -u
folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-out}
end=$((SECONDS + ${2:-540}))
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv | tee "$out/gpu.txt"

replay() {
  if [ $((end - SECONDS)) -lt 45 ]; then
    echo "left out: $*"
    return
  fi
  program=$1
  shift
  timeout $((end - SECONDS)) python3 "$here/replay.py" "$folder/$program.pb.gz" "$@" 2>>"$out/replay.err" |
    tail -1 | tee -a "$out/replay.jsonl"
}

gpt2=(--tokens=32768 --flops=28.03e12)
replay gpt2_cudnn "${gpt2[@]}"
replay gpt2_eager "${gpt2[@]}"
replay gpt2_cudnn "${gpt2[@]}" --flags=--xla_gpu_enable_triton_gemm=false # cuBLAS alone.
replay gpt2_cudnn "${gpt2[@]}" --flags=--xla_gpu_autotune_level=0         # The worth of autotuning.
replay gpt2_cudnn "${gpt2[@]}" --flags=--xla_gpu_enable_command_buffer=   # No CUDA graphs.
replay gpt2_steps --steps=4 "${gpt2[@]}"
replay generate_greedy --steps=10 --int_max=1
replay generate_sampled --steps=10 --int_max=1
replay resnet50 --int_max=1000
replay nf4_lora --int_max=31000
replay moe --int_max=31000
replay scan_layers --int_max=31000
replay gpt2_eager "${gpt2[@]}" --flags=--xla_gpu_deterministic_ops=true
echo "seconds left: $((end - SECONDS))"
