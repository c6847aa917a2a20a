# Sourced by the other scripts and by .ci/run (bash): finds or builds the project's own Python environment.
#
# An environment is the folder .venv-<mxnet>-py<version>-<lock>, where <lock> is a hash over requirements/*.txt. Its
# files `mxtrain-ready-*` are written last, and name the folder that they were made for: without them the environment is
# built again, so an interrupted set-up or a moved checkout does no harm. `.venv` is a link to what plain calls use.
#
# MXTRAIN_PYTHON   the Python to build with (3.9 to 3.11)
# MXTRAIN_MXNET    cpu, cu117, cu116, ...: which MXNet, instead of what the machine's driver suggests
# MXTRAIN_USE_UV   1: get Python through uv where the machine has none that fits

mxtrain_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
mxtrain_variants="cpu cu117 cu116 cu115 cu114 cu113 cu112 cu110 cu102"

# With the home of another Python, that of an environment does not start.
unset PYTHONHOME PYTHONPLATLIBDIR
# Variables of the user that send packages elsewhere, or let another Python's packages take part in the set-up.
mxtrain_foreign="PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_VIRTUALENV PIP_PYTHON PIP_PLATFORM PIP_DRY_RUN
  PIP_NO_BINARY PIP_ONLY_BINARY PIP_NO_DEPS PIP_DOWNLOAD_DIR PYTHONPATH PYTHONUSERBASE PYTHONOPTIMIZE PYTHONSAFEPATH"

_say() { printf 'mxtrain: %s\n' "$*" >&2; }
_fail() { _say "$@"; exit 2; }

# mxtrain_environment LAYER: set `mxtrain_python`. LAYER is base or test (base plus what the tests need).
mxtrain_environment() {
  local layer="$1" lock driver ready_for="" word kept=()
  [[ "$(uname -s)/$(uname -m)" == Linux/x86_64 ]] || _fail "MXNet 1.9.1 is published as wheels for Linux on x86-64" \
    "only, and this is $(uname -s) on $(uname -m). Use such a machine, a container or a virtual machine."
  lock="$(_hash_locks)"
  driver="$(_driver_mark)"

  # The quick way, on every call but the first: .venv fits these locks, this driver and this folder.
  if [[ -z "${MXTRAIN_PYTHON:-}${MXTRAIN_MXNET:-}" ]]; then
    mxtrain_python="$mxtrain_root/.venv/bin/python"
    _is_ready "$mxtrain_root/.venv" "$lock" "$driver" "$layer" && return
  fi
  local variant python version name
  for name in $mxtrain_foreign; do
    if [[ -v "$name" ]]; then kept+=("$name=${!name}"); unset "$name"; fi
  done
  # A choice by hand is for one call: its stamp fits no driver, so that the quick way never takes it for the default.
  [[ -z "${MXTRAIN_PYTHON:-}${MXTRAIN_MXNET:-}" ]] || driver="chosen by hand"
  variant="$(_choose_variant)" || exit 2
  python="$(_find_python)" || exit 2
  version="$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')"
  name=".venv-$variant-py$version-$lock"
  _build "$name" "$variant" "$python" "$layer" "$lock" "$driver"
  mxtrain_python="$mxtrain_root/$name/bin/python"
  (( ! ${#kept[@]} )) || export "${kept[@]}"  # what is run sees the user's variables
}

_require_writable() {
  [[ -w "$mxtrain_root" ]] && { [[ ! -e "$1" ]] || [[ -f "$1" && -w "$1" ]]; } && return
  _fail "$mxtrain_root cannot be written, and the environment (about 1 GB) is made there: the checkout is read-only or" \
    "belongs to somebody else. Clone it into a folder of yours, or have its owner type scripts/train --version once."
}

# The locks of everything but the documentation, whose environment holds nothing else, and PyTorch, which scripts/torch adds:
# these have hashes of their own.
_hash_locks() {
  local name hash
  hash="$(cd "$mxtrain_root/requirements" && for name in *.txt; do
    [[ "$name" == docs.txt || "$name" == torch.txt ]] || cat -- "$name"; done | sha256sum)"
  printf '%s' "${hash:0:12}"
}

# mxtrain_docs_environment: set `mxtrain_python` to one that has MkDocs, and nothing of mxtrain's.
mxtrain_docs_environment() {
  local lock driver=any folder python descriptor
  lock="$(sha256sum < "$mxtrain_root/requirements/docs.txt")"
  lock="${lock:0:12}"
  folder="$mxtrain_root/.venv-docs-py311-$lock"
  mxtrain_python="$folder/bin/python"
  _is_ready "$folder" "$lock" any docs && return
  python="$(_find_python)" || exit 2
  [[ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" == 3.11 ]] ||
    _fail "the documentation is built with Python 3.11, and none is on PATH. MXTRAIN_PYTHON=/path/to/python3.11 names one."
  _require_writable "$mxtrain_root/.venv-lock"
  if command -v flock >/dev/null; then exec {descriptor}>"$mxtrain_root/.venv-lock" && flock "$descriptor"; fi
  if ! _is_ready "$folder" "$lock" any docs; then
    _say "preparing ${folder##*/} with $python (once; about 20 MB, 30 s)"
    rm -rf "$folder"
    "$python" -m venv "$folder" >&2 || _fail "$python could not make an environment in $folder; see the message above."
    _install "$folder" -r "$mxtrain_root/requirements/docs.txt"
    _stamp "$folder" docs
  fi
  [[ -z "${descriptor:-}" ]] || exec {descriptor}>&-
}

# What tells machines with and without an NVIDIA driver apart, without the second that nvidia-smi takes.
_driver_mark() {
  local mark=none
  if [[ -r /proc/driver/nvidia/version ]]; then IFS= read -r mark < /proc/driver/nvidia/version
  elif [[ -e /dev/dxg ]]; then mark=wsl; fi
  printf '%s' "$mark"
}

# The stamp of a layer: three lines, the folder, the lock and the driver that it was made for.
_is_ready() {
  local folder="$1" lines=()
  [[ -x "$folder/bin/python" && -r "$folder/mxtrain-ready-$4" ]] || return 1
  mapfile -t lines < "$folder/mxtrain-ready-$4"
  [[ "${lines[0]:-}" == "$mxtrain_root" && "${lines[1]:-}" == "$2" ]] || return 1
  [[ "$3" == any || "${lines[2]:-}" == "$3" ]]
}

_choose_variant() {
  local wanted="${MXTRAIN_MXNET:-}" variant cuda=""
  if [[ -n "$wanted" ]]; then
    [[ " $mxtrain_variants " == *" $wanted "* ]] ||
      _fail "MXTRAIN_MXNET=$wanted is not known. It may be: $mxtrain_variants." \
      "(mxnet-cu118 and later have never been published; cu117 runs on newer drivers, on GPUs of compute capability below 9.0.)"
    printf '%s' "$wanted"; return
  fi
  if [[ "$(_driver_mark)" != none ]] && command -v nvidia-smi >/dev/null; then
    cuda="$(nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA Version: *([0-9]+)\.([0-9]).*/\1\2/p' | head -n 1 || true)"
  fi
  # The newest wheel that is not newer than the CUDA that the driver supports.
  if [[ -n "$cuda" ]] && ! _gpus_are_too_new; then
    for variant in $mxtrain_variants; do
      [[ "$variant" != cpu ]] && (( ${variant#cu} <= cuda )) && { printf '%s' "$variant"; return; }
    done
  fi
  printf cpu
}

# Whether the driver reports only GPUs that no published wheel has code for: up to compute capability 8.6 (which 8.9 runs,
# too), and no PTX, from which the driver could make code for 9.0 and later. Says so, and what to do.
_gpus_are_too_new() {
  local capability name too_new="" fits=""
  while IFS=, read -r capability name; do
    [[ "$capability" =~ ^\ *([0-9]+)\.[0-9]+\ *$ ]] || continue
    if (( BASH_REMATCH[1] >= 9 )); then too_new+="${too_new:+,}$name (compute capability ${capability// /})"; else fits=1; fi
  done < <(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>/dev/null || true)
  [[ -n "$too_new" ]] || return 1
  if [[ -n "$fits" ]]; then
    _say "of these GPUs MXNet can't run on:$too_new. Hide them with CUDA_VISIBLE_DEVICES."
    return 1
  fi
  _say "every published wheel of MXNet 1.9.1 holds code up to compute capability 8.6 and no PTX, so it can't run on" \
    "this machine's GPUs:$too_new. Taking the CPU wheel."
  _say "GPUs of compute capability 9.0 run in NVIDIA's MXNet container 24.05 or 24.06: examples/container/Dockerfile.ngc."
  _say "Otherwise build MXNet 1.9.1 for their architecture under a version of its own, such as 1.9.1+sm90, and install" \
    "it in place of the wheel: .venv/bin/python -m pip uninstall -y mxnet; .venv/bin/python -m pip install YOUR.whl"
}

# Print the path of a CPython 3.9 to 3.11 that can make environments.
_find_python() {
  local name candidate answer tried="" no_venv=""
  if [[ -n "${MXTRAIN_PYTHON:-}" ]]; then
    candidate="$(command -v "$MXTRAIN_PYTHON" || true)"
    [[ -n "$candidate" ]] || _fail "MXTRAIN_PYTHON=$MXTRAIN_PYTHON is not a program."
    answer="$(_ask_python "$candidate" || true)"
    [[ "$answer" == fits ]] && { printf '%s' "$candidate"; return; }
    _explain_python "$candidate" "$answer"
    exit 2
  fi
  # Every match on PATH, not only the first: a version manager's shim may stand before a Python that works.
  for name in python3.11 python3.10 python3.9 python3 python; do
    while IFS= read -r candidate; do
      answer="$(_ask_python "$candidate" || true)"
      case "$answer" in
        fits) printf '%s' "$candidate"; return ;;
        no-venv*) no_venv="$candidate" ;;
        version*) [[ " $tried " == *" ${answer#version } "* ]] || tried+=" ${answer#version }" ;;
      esac
    done < <(type -aP "$name" | awk '!seen[$0]++')
  done
  if [[ "${MXTRAIN_USE_UV:-}" == 1 ]] || command -v uv >/dev/null; then _python_from_uv; return; fi
  if [[ -n "$no_venv" ]]; then _explain_python "$no_venv" no-venv; exit 2; fi
  _say "MXNet needs Python 3.9, 3.10 or 3.11, and none of them is on PATH (found:${tried:- no Python at all})."
  _say "uv can fetch one without touching the system's. Either let this script do it:"
  _say "    scripts/train --with-uv"
  _say "or by hand:"
  _say "    python3 -m pip install uv        (or your system's package; pipx install uv)"
  _say "    uv python install 3.11"
  _say "    MXTRAIN_PYTHON=\"\$(uv python find 3.11)\" scripts/train"
  exit 2
}

# _find_python_version X.Y: print the path of a Python of this version that has venv; status 1 if there is none.
_find_python_version() {
  local candidate
  for candidate in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    # pyenv puts a program on PATH for each installed version. It fails if that version is not selected.
    [[ -x "$candidate" ]] && "$candidate" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" \
      2> /dev/null && { printf '%s' "$candidate"; return; }
  done
  return 1
}

# fits | version X.Y | no-venv | other; nothing where it can't be run at all.
_ask_python() {
  "$1" -c '
import platform, sys
if not (3, 9) <= sys.version_info < (3, 12): print("version %d.%d" % sys.version_info[:2])
elif platform.python_implementation() != "CPython" or sys.maxsize < 2**32: print("other")
elif platform.libc_ver()[0] != "glibc": print("other")
else:
    try:
        import ensurepip, venv
        print("fits")
    except ImportError: print("no-venv %d.%d" % sys.version_info[:2])
' 2>/dev/null
}

_explain_python() {
  case "$2" in
    version*) _say "$1 is Python ${2#version }; MXNet needs 3.9, 3.10 or 3.11." ;;
    no-venv*) _say "$1 has no venv and ensurepip. On Debian and Ubuntu: apt install python3-venv; then try again." ;;
    other) _say "$1 is not a 64-bit CPython on glibc, as MXNet's wheels need (Alpine Linux has musl)." ;;
    *) _say "$1 does not run." ;;
  esac
}

_python_from_uv() {
  local uv="uv" found
  if ! command -v uv >/dev/null; then
    uv="$mxtrain_root/.venv-uv/bin/uv"
    if [[ ! -x "$uv" ]]; then
      _say "no uv on PATH: installing it into .venv-uv (25 MB)"
      rm -rf "$mxtrain_root/.venv-uv"
      { python3 -m venv "$mxtrain_root/.venv-uv" && "$mxtrain_root/.venv-uv/bin/python" -m pip install --quiet \
        --disable-pip-version-check --require-hashes -r "$mxtrain_root/requirements/uv.txt"; } >&2 ||
        _fail "uv could not be installed; see the message above. By hand: https is needed to your package index."
    fi
  fi
  if ! found="$("$uv" python find '>=3.9,<3.12' 2>/dev/null)"; then
    _say "fetching Python 3.11 with uv (30 MB)"
    "$uv" python install 3.11 >&2 || _fail "uv could not fetch Python 3.11; see its message above. Any other Python" \
      "3.9 to 3.11 will do: MXTRAIN_PYTHON=/path/to/python3.11 scripts/train"
    found="$("$uv" python find '>=3.9,<3.12')"
  fi
  printf '%s' "$found"
}

# Build the environment NAME if it is not complete. Two calls at once: the second waits and finds it done.
_build() {
  local name="$1" variant="$2" python="$3" layer="$4" lock="$5" driver="$6"
  local folder="$mxtrain_root/$name" lock_file="$mxtrain_root/.venv-lock" descriptor=""
  _require_writable "$lock_file"
  if command -v flock >/dev/null; then
    exec {descriptor}>"$lock_file"
    flock -n "$descriptor" || { _say "another set-up is at work here; waiting for it"; flock "$descriptor"; }
  fi
  if ! _is_ready "$folder" "$lock" any base; then _build_base "$folder" "$variant" "$python"; _stamp "$folder" base; fi
  if [[ "$layer" == test ]] && ! _is_ready "$folder" "$lock" any test; then
    _say "adding what the tests need to $name (once; about 35 MB, 40 s)"
    _install "$folder" -r "$mxtrain_root/requirements/test.txt"
    (_install "$folder" -r "$mxtrain_root/requirements/gluonnlp.txt" 2>/dev/null) ||
      _say "GluonNLP could not be built (it needs g++ and Python's headers): the test that compares with it is skipped"
    _stamp "$folder" test
  fi
  if [[ "$driver" != "chosen by hand" ]]; then
    for layer in base test; do [[ -e "$folder/mxtrain-ready-$layer" ]] && _stamp "$folder" "$layer"; done
    _link "$name"
  elif [[ ! -e "$mxtrain_root/.venv" ]]; then
    _link "$name"
  fi
  [[ -z "$descriptor" ]] || exec {descriptor}>&-
}

_build_base() {
  local folder="$1" variant="$2" python="$3" size="0.3 GB to download, 1 GB on disk, 2 to 5 minutes" libraries=()
  # NVIDIA's libraries for the builds that mxtrain/runtime/cuda_libraries.py loads them for.
  case "$variant" in
    cu11[2-7]) size="2.4 GB to download, 5 GB on disk, 5 minutes or more"; libraries=(-r "$mxtrain_root/requirements/cuda11.txt") ;;
    cu*) size="0.8 GB to download, 2 GB on disk, 2 to 5 minutes" ;;
  esac
  _say "preparing ${folder##*/} with $python (once; $size)"
  rm -rf "$folder"
  "$python" -m venv "$folder" >&2 || _fail "$python could not make an environment in $folder; see the message above."
  _say "1/3 build tools"
  _install "$folder" -r "$mxtrain_root/requirements/build.txt"
  _say "2/3 MXNet ($variant), GluonCV, Hydra, TensorBoard and what they need, each file checked by its SHA-256"
  _install "$folder" -r "$mxtrain_root/requirements/base.txt" -r "$mxtrain_root/requirements/mxnet-$variant.txt" \
    "${libraries[@]}"
  local site; site="$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n' "$mxtrain_root" > "$site/mxtrain-checkout.pth"
  printf '#!/bin/sh\nexec "%s" -m mxtrain "$@"\n' "$folder/bin/python" > "$folder/bin/mxtrain"
  chmod +x "$folder/bin/mxtrain"
  _lend_library "$site" libgomp.so.1 'scikit_learn.libs/libgomp-*.so*'
  _lend_library "$site" libquadmath.so.0 'numpy.libs/libquadmath-*.so*'
  _say "3/3 importing MXNet and GluonCV"
  if ! "$folder/bin/python" -W ignore -c 'import mxtrain.engine.backend, gluoncv' > "$folder/import.log" 2>&1; then
    tail -n 3 "$folder/import.log" >&2
    if [[ "$variant" == cpu ]]; then
      _say "MXNet can't be imported here; the reason is above. For a missing libgomp.so.1: apt install libgomp1"
      exit 1
    fi
    if ((${#libraries[@]})); then
      _say "mxnet-$variant can't be imported here; it needs NVIDIA's driver (libcuda.so.1), and the reason is above." \
        "Training on the CPU instead: MXTRAIN_MXNET=cpu scripts/train"
    else
      _say "mxnet-$variant can't be imported here; it needs the CUDA ${variant:2:2}.${variant:4} libraries, cuDNN 8 and" \
        "NCCL on the library path. Training on the CPU instead: MXTRAIN_MXNET=cpu scripts/train"
    fi
    exit 1
  fi
}

# MXNet wants two libraries of GCC's that small systems lack. Other wheels carry copies under names of their own: lend
# them to MXNet, which looks in its own folder first.
_lend_library() {
  local site="$1" library="$2" copy
  "$site/../../../bin/python" -c "import ctypes; ctypes.CDLL('$library')" 2>/dev/null && return
  copy="$(cd "$site" && compgen -G "$3" | head -n 1 || true)"
  if [[ -n "$copy" ]]; then ln -s "../$copy" "$site/mxnet/$library"; fi
}

# The locks are complete, so pip resolves nothing. Packages without a wheel are built with the tools of build.txt, not
# with whatever is newest today. pip would compile 14,000 modules on one core. PIP_COMPILE=0 or --no-compile: Python
# compiles what it imports.
_install() {
  local folder="$1" log="$1/pip.log" setting compile="${PIP_COMPILE:-1}"; shift
  if [[ "$1" == --no-compile ]]; then compile=0; shift; fi
  # No option of pip's takes these settings of its files back.
  setting="$("$folder/bin/python" -m pip config list 2>/dev/null < /dev/null |
    sed -nE '/^(global|install)\.(target|prefix|root|user|require-virtualenv|no-binary|only-binary)=/p' | head -n 1 || true)"
  [[ -z "$setting" ]] || _fail "pip's configuration has $setting, which keeps packages out of the environment. Remove it" \
    "(python3 -m pip config unset ${setting%%=*}), or leave pip's files out this time: PIP_CONFIG_FILE=/dev/null before" \
    "this command."
  if ! _with_progress 5 "$log" "$folder/bin/python" -m pip install --disable-pip-version-check --no-input \
    --progress-bar off --require-hashes --no-deps --no-build-isolation --use-pep517 --no-compile "$@"; then
    _fail "installing failed; the last lines are above, all of them in $log. Run this again to retry; what was" \
      "downloaded is kept in pip's cache."
  fi
  # Some packages hold templates that are no Python.
  [[ "$compile" == 0 ]] || "$folder/bin/python" -m compileall -q -j 0 "$folder/lib" > /dev/null 2>&1 || true
}

_stamp() {
  printf '%s\n%s\n%s\n' "$mxtrain_root" "$lock" "$driver" > "$1/mxtrain-ready-$2.new"
  mv "$1/mxtrain-ready-$2.new" "$1/mxtrain-ready-$2"
}

# _with_progress SECONDS LOG COMMAND...: run a command that takes minutes, its output in LOG. Every so many seconds, say how
# long it has been at work, with the package that pip named last, or the percentage that make printed last.
_with_progress() {
  local interval="$1" log="$2" begun="$SECONDS" said="$SECONDS" doing process
  shift 2
  "$@" > "$log" 2>&1 < /dev/null &
  process=$!
  # A command in the background of a script does not get the terminal's Ctrl-C.
  trap 'kill "$process" 2> /dev/null; exit 130' INT
  trap 'kill "$process" 2> /dev/null; exit 143' TERM
  while kill -0 "$process" 2>/dev/null; do
    sleep 0.5
    (( SECONDS - said >= interval )) || continue
    said="$SECONDS"
    doing="$(sed -nE -e 's/^.*\[ *([0-9]+%)\].*$/compiled \1/p' -e 's/^Installing collected packages.*/installing/p' \
      -e 's/^ *(Collecting|Downloading|Building wheel for) ([A-Za-z0-9._-]+).*$/\1 \2/p' "$log" | tail -n 1)"
    _say "  $(( SECONDS - begun )) s${doing:+, ${doing,}}"
  done
  trap - INT TERM
  wait "$process" || { tail -n 15 "$log" >&2; return 1; }
}

_link() {
  local link="$mxtrain_root/.venv"
  [[ -e "$link" && ! -L "$link" ]] && return  # somebody's own folder: leave it
  ln -sfn "$1" "$link.new.$$" && mv -T "$link.new.$$" "$link"
}
