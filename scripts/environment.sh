# Sourced by the other scripts. `prepare EXTRAS` creates .venv (or $CHORAL_VENV) with Choral and these extras.
# A second call does nothing unless pyproject.toml or the constraints changed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${CHORAL_VENV:-$root/.venv}

prepare() {
    local extras=$1 stamp
    stamp="$venv/.choral-$(cat "$root/pyproject.toml" "$root/scripts/constraints.txt" | cksum | cut -d' ' -f1)-${extras//,/-}"
    [ -e "$stamp" ] && return
    local python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "Choral needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Set PYTHON to a newer one." >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        echo "This Python cannot create virtual environments: install its venv package (Debian: apt install python3-venv)." >&2
        exit 1
    fi
    echo "Setting up a virtual environment in $venv (once; a few minutes) …" >&2
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    # torch first, so that packages which depend on any torch keep the pinned one.
    "$venv/bin/python" -m pip install --quiet -c "$root/scripts/constraints.txt" torch
    "$venv/bin/python" -m pip install --quiet -c "$root/scripts/constraints.txt" -e "$root[$extras]"
    rm -f "$venv"/.choral-*"-${extras//,/-}"
    touch "$stamp"
}
