# Sourced by ./dev: system packages, the virtual environment, the release build, the Python package.
# Each step looks at the real state or at a stamp of its inputs, so a second call costs a second.
# shellcheck shell=bash

venv=${root:?set by ./dev}/.venv
logs=$root/build/log
min_python=3.11
min_torch=2.10
python_option=TWOFOUR_PYTHON

fail() {
  echo "dev: $*" >&2
  exit 2
}
say() { echo "==> $*"; }

# Said on the terminal itself: within a step stderr is a pipe.
exec {terminal}>&2
trap 'echo "dev: interrupted; run the same command again to go on" >&$terminal; exit 130' INT TERM

asks_help() { [[ " $* " == *" --help "* || " $* " == *" -h "* || " $* " == *" --list "* ]]; }
any_python() { if [[ -x $venv/bin/python ]]; then echo "$venv/bin/python"; else echo python3; fi; }
no_words() { # no_words WORD...: for commands that take none
  (($# == 0)) || fail "${command:?}: expected no further words, got '$*'"
}
exit_saying() { # exit_saying CODE TEXT
  echo "$2" >&2
  exit "$1"
}
# parse_first SCRIPT WORD...: bad words end the run before minutes of set-up. Without a Python that
# can read the script this must wait until after it.
parse_first() {
  local python said script=$root/tools/dev/$1
  shift
  python=$(any_python)
  at_least $min_python "$(python_version "$python")" || return 0
  # Its errors are shown when it is done: what Ctrl-C makes of it is not one.
  { said=$("$python" "$script" --parse-only "$@" 2>&1 >&3) || exit_saying $? "$said"; } 3>&1
}
jobs() { echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"; }
hash_of() { sha256sum "$@" | sha256sum | cut -d' ' -f1; }
free_mib() { df -Pm "$root" | awk 'NR == 2 {print $4}'; }
need_space() { # need_space MIB WHAT
  local free
  free=$(free_mib)
  ((free >= $1)) || fail "$2 needs about $1 MiB of free disk in $root, found $free MiB"
}

# show_errors LOG: lines of stdin to the log and to the terminal. Ctrl-C reaches all processes of the
# terminal: what still writes must not lose its reader, and its tracebacks go to the log alone.
show_errors() {
  local line quiet=
  trap 'quiet=1' INT TERM
  while IFS= read -r line || [[ -n $line ]]; do
    printf '%s\n' "$line" >&3
    [[ -n $quiet ]] || printf '%s\n' "$line" >&2
  done 3>"$1"
}

# step NAME TEXT COMMAND...: runs the command with its output shown and its errors kept, and says in
# one line why it failed.
step() {
  local name=$1 text=$2 start=$SECONDS code=0 errors reader
  shift 2
  mkdir -p "$logs" || fail "cannot write to $root/build"
  say "$text"
  exec {errors}> >(show_errors "$logs/$name.log")
  reader=$!
  "$@" 2>&$errors {errors}>&- || code=$?
  exec {errors}>&-
  wait "$reader" || true
  ((code == 0)) || fail "$text: failed: $(reason "$logs/$name.log" "$code")"
  say "$text: done in $((SECONDS - start)) s"
}

# reason LOG CODE: the likely cause of a failed step, as one line.
reason() {
  if (($(free_mib) < 20)) || grep -qi 'no space left\|not enough free space' "$1"; then
    echo "the disk of $root is full"
  elif grep -qiE 'resolv|unreachable|connection|timed out|NewConnectionError|could not connect' "$1"; then
    echo "no network, or the package index cannot be reached"
  else
    local line
    line=$(grep -E '^(E:|ERROR|CMake Error|FAILED|ninja:|.*error:)' "$1" | tail -n 1)
    echo "${line:-exit code $2, see the lines above}"
  fi
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "root or sudo is needed to run: $*"
  fi
}

missing_packages() {
  local name
  while read -r name; do
    [[ -z $name || $name == \#* ]] && continue
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
  done <"$root/requirements/apt.txt"
}

install_packages() {
  [[ -z ${TWOFOUR_SKIP_APT:-} ]] || return 0
  command -v apt-get >/dev/null ||
    fail "no apt-get here: install what requirements/apt.txt names, then set TWOFOUR_SKIP_APT=1"
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  need_space 2000 "installing system packages"
  # One unreachable source must not stop what the others can serve; the install says what is missing.
  as_root apt-get -q update || say "package lists: not all could be refreshed"
  step apt "system packages: ${missing[*]}" as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends "${missing[@]}"
}

# python_version PYTHON: "3.12.1"; fails where that is not a Python.
python_version() {
  local version
  version=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || return
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] && echo "$version"
}
at_least() { # at_least MINIMUM VERSION
  [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

# The interpreter that .venv is made from: the user's, else the first that is new enough.
find_python() {
  local candidate version seen=
  if [[ -n ${TWOFOUR_PYTHON:-} ]]; then
    candidate=$TWOFOUR_PYTHON
    [[ -d $candidate ]] && candidate=$candidate/bin/python
    version=$(python_version "$candidate") ||
      fail "$python_option: expected a Python $min_python or newer or its environment, got $TWOFOUR_PYTHON"
    at_least $min_python "$version" ||
      fail "$python_option: expected Python $min_python or newer, found $version at $candidate"
    command -v "$candidate"
    return
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    version=$(python_version "$candidate") || continue
    if at_least $min_python "$version"; then
      command -v "$candidate"
      return
    fi
    seen+=" $version"
  done
  fail "expected Python $min_python or newer, found${seen:- none}; install one or pass --python PATH"
}

# With TWOFOUR_PYTHON, .venv is a layer over that environment: its torch is seen through a .pth file
# and nothing is written there.
make_venv() {
  local python=$1
  rm -rf "$venv" && "$python" -m venv "$venv" || return
  [[ -n ${TWOFOUR_PYTHON:-} ]] || return 0
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
    "$python" -c 'import sysconfig
print(*{sysconfig.get_path(kind) for kind in ("purelib", "platlib")}, sep="\n")' \
      >"$site/twofour_base.pth" && echo "$TWOFOUR_PYTHON" >"$venv/.twofour-base"
}

check_torch() { # check_torch PYTHON
  local version
  version=$("$1" -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null) ||
    fail "expected torch $min_torch or newer in $1, found none that can be imported"
  at_least $min_torch "$version" || fail "expected torch $min_torch or newer in $1, found $version"
}

install_requirements() { # install_requirements FILE...
  local args=() file
  for file in "$@"; do args+=(-r "$file"); done
  export PIP_DISABLE_PIP_VERSION_CHECK=1
  # The formatters are run from .venv/bin, where a copy in the layer below would not be found.
  "$venv/bin/python" -m pip install --ignore-installed --no-deps \
    -r "$root/requirements/format.txt" && "$venv/bin/python" -m pip install "${args[@]}"
}

set_up_venv() {
  local base=$venv/.twofour-base stamp=$venv/.twofour-requirements python wanted files
  files=("$root/requirements/dev.txt")
  # Absolute, symbolic links kept: an environment's interpreter is one.
  [[ ${TWOFOUR_PYTHON:-} != */* ]] || TWOFOUR_PYTHON=$(realpath -s "$TWOFOUR_PYTHON")
  [[ ${TWOFOUR_PYTHON:-} != "$venv"?(/*) ]] || TWOFOUR_PYTHON=
  # An environment named once stays in use until .venv is removed or another is named.
  if [[ -z ${TWOFOUR_PYTHON:-} && -s $base ]]; then
    TWOFOUR_PYTHON=$(<"$base") python_option="the Python that .venv was made from"
  fi
  [[ -n ${TWOFOUR_PYTHON:-} ]] || files=("$root/requirements/torch.txt" "${files[@]}")
  wanted="$(hash_of "${files[@]}" "$root/requirements/format.txt") ${TWOFOUR_PYTHON:-}"
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$venv/bin/python" -c '' 2>/dev/null; then
    return
  fi
  python=$(find_python) || exit $?
  [[ -z ${TWOFOUR_PYTHON:-} ]] || check_torch "$python"
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    [[ -f $stamp && $(cut -d' ' -f2- "$stamp") != "${TWOFOUR_PYTHON:-}" ]] ||
    [[ -n ${TWOFOUR_PYTHON:-} && ! -f $base ]]; then
    need_space 3000 "the Python environment"
    step venv "Python environment in .venv, from $python" make_venv "$python"
  fi
  step pip "Python packages" install_requirements "${files[@]}"
  check_torch "$venv/bin/python"
  echo "$wanted" >"$stamp"
}

set_up() {
  install_packages
  set_up_venv
}

# Writes what each translation unit cost beside its object; ./dev check reads it.
launcher="$venv/bin/python;-IS;$root/tools/dev/compile_cost.py"

configure() { # configure PRESET
  (cd "$root" && cmake --preset "$1" --no-warn-unused-cli -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CUDA_COMPILER_LAUNCHER="$launcher")
}

build_release() {
  local stamp=$root/build/release/.twofour-preset wanted
  need_space 500 "the build"
  wanted=$(hash_of "$root/CMakePresets.json" "$root/tools/dev/setup.sh")
  if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    step configure "configure build/release" configure release
    echo "$wanted" >"$stamp"
  fi
  step build "build of build/release" cmake --build "$root/build/release" -j "$(jobs)"
}

package_inputs() {
  (cd "$root" && find CMakeLists.txt pyproject.toml README.md LICENSE cmake include src python \
    -type f ! -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
}

# The package of ./dev has CUDA kernels only where a GPU could run them: they take minutes to compile,
# and build/release compiles them in any case.
cuda_of_package() { [[ -e /dev/nvidiactl || -e /dev/dxg ]] && echo AUTO || echo OFF; }

pip_install_package() {
  # The libraries come from requirements/, so pip neither resolves nor isolates. pyproject.toml keeps
  # the build folder, which makes a second build incremental.
  (cd "$root" && CMAKE_BUILD_PARALLEL_LEVEL=$(jobs) PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$venv/bin/python" -m pip install --no-build-isolation --no-deps --force-reinstall \
    --config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
    --config-settings=cmake.define.TWOFOUR_CUDA="$(cuda_of_package)" .)
}

install_package() {
  local stamp=$venv/.twofour-package wanted
  wanted="$(package_inputs) $(cuda_of_package)"
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] &&
    "$venv/bin/python" -m pip show --quiet twofour 2>/dev/null; then
    return
  fi
  step package "Python package into .venv (a minute or two the first time)" pip_install_package
  echo "$wanted" >"$stamp"
}
