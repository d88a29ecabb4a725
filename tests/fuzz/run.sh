#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each over its corpus with a fixed seed.
# Longer: build/fuzz/tests/fuzz/fuzz_npy -max_total_time=3600 DIR tests/fuzz/corpus/npy
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake --preset fuzz -Wno-dev
cmake --build build/fuzz --target fuzzers
ctest --test-dir build/fuzz -R '^fuzz_' --output-on-failure --no-tests=error "$@"
