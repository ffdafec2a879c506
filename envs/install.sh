#!/bin/sh
# Installs the pinned environment into a Python:   envs/install.sh PYTHON cpu|cuda [dev]
# The order matters: torch first, with its dependencies; then everything else exactly as pinned and without dependencies (lock.txt says why).
set -eu
envs=$(dirname "$0")
python=$1 accelerator=$2
shift 2

pip_install() {
    echo "environment: pip install $*"
    "$python" -m pip install --quiet --no-input --disable-pip-version-check --no-warn-script-location "$@"
}

# The pins without their dependencies: by uv where it is on PATH, which takes seconds, else by pip. torch always comes by pip, whose
# configuration (PIP_EXTRA_INDEX_URL, local files) decides its build.
install_pins() {
    if command -v uv >/dev/null 2>&1; then
        echo "environment: uv pip install --no-deps $*"
        uv pip install --quiet --no-progress --python "$python" --no-deps "$@" && return
        echo "environment: uv failed; pip does it"
    fi
    pip_install --no-deps "$@"
}

pip_install -c "$envs/lock.txt" -c "$envs/$accelerator.txt" -r "$envs/torch.txt"
install_pins -r "$envs/lock.txt" -r "$envs/$accelerator.txt"
for group in "$@"; do
    install_pins -r "$envs/$group.txt"
done
