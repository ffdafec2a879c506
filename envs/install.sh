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

pip_install -c "$envs/lock.txt" -c "$envs/$accelerator.txt" -r "$envs/torch.txt"
pip_install --no-deps -r "$envs/lock.txt" -r "$envs/$accelerator.txt"
for group in "$@"; do
    pip_install --no-deps -r "$envs/$group.txt"
done
