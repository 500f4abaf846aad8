#!/bin/sh
# Installs what Innkeeper needs on this machine: Debian packages, then a
# virtual environment with exactly the versions of requirements.lock.
#
#   tools/setup.sh           does what is missing, and nothing when all is there
#
# On Debian 12 and 13 packages come by apt (as root, or with sudo). Elsewhere
# the script names the commands that are missing and stops.
set -eu

cd "$(dirname "$0")/.."
venv=build/venv
packages=tools/setup-packages.txt

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

wanted() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$packages"; }

# Lines of setup-packages.txt: PACKAGE COMMAND-OR-FILE that proves it is there.
missing_packages() {
    wanted | while read -r package proof; do
        present "$proof" || printf '%s ' "$package"
    done
}

present() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 ;;
    esac
}

debian_release() {
    [ -r /etc/os-release ] || return 1
    # shellcheck disable=SC1091
    ( . /etc/os-release && [ "${ID:-}" = debian ] && printf '%s' "${VERSION_ID:-}" )
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1; then sudo "$@"
    else die "to install: $* needs root, and there is no sudo. Run it as root once."
    fi
}

install_packages() {
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    release=$(debian_release || true)
    case $release in
        12|13) ;;
        *) die "this is not Debian 12 or 13, so install by hand what provides: $missing(names are Debian's)" ;;
    esac
    say "installing with apt: $missing"
    log=build/setup-apt.log
    mkdir -p build
    # shellcheck disable=SC2086
    as_root sh -c "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing" \
        >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "apt failed; the whole output is in $log"; }
    left=$(missing_packages)
    [ -z "$left" ] || die "apt installed its packages, but these are still not there: $left"
}

# A Python of 3.11 or later that can make virtual environments.
find_python() {
    for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return 0
        fi
    done
    die "no Python 3.11 or later with the venv module is here (Debian: python3-venv)"
}

make_venv() {
    stamp=$venv/installed
    wanted_hash=$(cat requirements.lock pyproject.toml | sha256sum)
    if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted_hash" ]; then return 0; fi
    python=$(find_python)
    say "making the virtual environment in $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/pip" --disable-pip-version-check --quiet install --require-hashes -r requirements.lock
    "$venv/bin/pip" --disable-pip-version-check --quiet install --no-deps --no-build-isolation -e .
    printf '%s' "$wanted_hash" >"$stamp"
}

# Real vsock without a kernel module on the host; optional, see README.md.
make_vhost_device_vsock() {
    binary=build/cargo/bin/vhost-device-vsock
    [ ! -x "$binary" ] || return 0
    command -v vhost-device-vsock >/dev/null 2>&1 && return 0
    command -v cargo >/dev/null 2>&1 || return 0
    [ -c /dev/vhost-vsock ] && return 0
    say "building vhost-device-vsock with cargo (a minute or two, once)"
    mkdir -p build
    if ! cargo install --quiet --locked --version "$(cat tools/vhost-device-vsock.version)" \
        --root build/cargo vhost-device-vsock >build/setup-cargo.log 2>&1; then
        say "it could not be built (build/setup-cargo.log); virtio-serial is used instead"
    fi
}

install_packages
make_venv
if [ "${1:-}" = --with-vsock ]; then make_vhost_device_vsock; fi
