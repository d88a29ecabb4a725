#!/bin/sh
# Installs a build into a temporary prefix, builds both examples against it with CMake and with
# pkg-config, against a shared library of the same objects, and looks at what they print.
# Usage: test_install.sh BUILD_DIR SOURCE_DIR C_COMPILER CXX_COMPILER
set -eu
build=$(cd "$1" && pwd) source=$(cd "$2" && pwd) cc=$3 cxx=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved

fail() {
  echo "test_install: $1" >&2
  exit 1
}

# Runs both examples of a folder and checks their last lines.
check() {
  for example in attention_cc attention_c; do
    "$1/$example" >"$work/$example.txt" || fail "$1/$example failed"
  done
  grep -q '^\* attention\.cpu\.exact\.pair ' "$work/attention_cc.txt" ||
    fail "attention_cc: expected the kernel attention.cpu.exact.pair, got $(cat "$work/attention_cc.txt")"
  awk '/^relative difference / { found = 1; bad = !($3 > 0 && $3 < 1) } END { exit !found || bad }' \
    "$work/attention_cc.txt" ||
    fail "attention_cc: expected a difference in (0, 1), got $(tail -n 1 "$work/attention_cc.txt")"
  awk '/exact\/pair128\/s1\/l0: largest error / { found = 1; bad = !($NF < 1e-5) }
       END { exit !found || bad }' "$work/attention_c.txt" ||
    fail "attention_c: expected an error below 1e-5, got $(cat "$work/attention_c.txt")"
}

# Installed in one place and used from another: the tree must not know where it was built.
cmake --install "$build" --prefix "$work/installed" --component development >/dev/null
mv "$work/installed" "$prefix"
! grep -rIlF -e "$build" -e "$source" "$prefix" || fail "the files above name the build or source folder"

cmp -s "$source/LICENSE" "$prefix/share/doc/twofour/LICENSE" ||
  fail "expected the licence at share/doc/twofour/LICENSE, found $(find "$prefix" -name 'LICENSE*')"

CC=$cc CXX=$cxx cmake -S "$source/examples" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_BUILD_TYPE=Release >"$work/cmake.log" || fail "$(cat "$work/cmake.log")"
cmake --build "$work/cmake" >>"$work/cmake.log" || fail "$(cat "$work/cmake.log")"
check "$work/cmake"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name twofour.pc)")
libdir=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH LD_LIBRARY_PATH="$libdir"
[ "$(pkg-config --modversion twofour)" = "$("$work/cmake/attention_c" | sed 's/^twofour \(.*\), a.*, .*/\1/')" ] ||
  fail "pkg-config and the library disagree on the version"
for flags in "" --static; do
  mkdir -p "$work/pkgconfig$flags"
  # shellcheck disable=SC2046
  "$cxx" -std=c++20 -O2 "$source/examples/attention.cc" -o "$work/pkgconfig$flags/attention_cc" \
    $(pkg-config $flags --cflags --libs twofour)
  # shellcheck disable=SC2046
  "$cc" -std=c99 -Wall -Wextra -pedantic -Werror -Wno-declaration-after-statement -O2 \
    "$source/examples/attention.c" -o "$work/pkgconfig$flags/attention_c" \
    $(pkg-config $flags --cflags --libs twofour) -lm
  check "$work/pkgconfig$flags"
done

! grep -rl '^namespace twofour {' "$prefix/include" ||
  fail 'the headers above: expected "namespace TWOFOUR_API twofour {", which a shared library shows'

# A shared library of the same objects shows the public interface, and nothing else of its own.
if [ -f "$libdir/libtwofour.a" ]; then
  mkdir "$work/shared"
  # shellcheck disable=SC2046
  "$cxx" -shared -o "$work/shared/libtwofour.so" -Wl,--whole-archive "$libdir/libtwofour.a" \
    -Wl,--no-whole-archive $(pkg-config --libs twofour | sed 's/-ltwofour//')
  "$cxx" -std=c++20 -O2 -I"$prefix/include" "$source/examples/attention.cc" \
    -o "$work/shared/attention_cc" -L"$work/shared" -ltwofour
  "$cc" -std=c99 -O2 -I"$prefix/include" "$source/examples/attention.c" \
    -o "$work/shared/attention_c" -L"$work/shared" -ltwofour -lm
  LD_LIBRARY_PATH=$work/shared check "$work/shared"
  ! nm -DC --defined-only "$work/shared/libtwofour.so" | grep -E ' twofour::(cpu|ref|capi|layout)::' ||
    fail "the shared library shows the internals above"
fi
echo "test_install: examples build and run with CMake, pkg-config and a shared library"
