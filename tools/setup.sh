#!/bin/sh
# Installs what Innkeeper needs on this machine: Debian packages, then a
# virtual environment with exactly the versions of requirements.lock.
#
#   tools/setup.sh                 does what is missing, and nothing when all is there
#   tools/setup.sh --with-vsock    builds vhost-device-vsock too, where there is cargo
#
# On Debian 12 and 13 packages come by apt (as root, or with sudo). Elsewhere
# the script names what is missing and stops. A run that was interrupted is
# taken up by the next one.
set -eu

CDPATH='' cd "$(dirname "$0")/.."
venv=build/venv
packages=tools/setup-packages.txt
# Debian's users have no sbin in PATH, and neither has root after a plain `su`.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

one_at_a_time() {
    mkdir -p build || die "cannot write into $PWD; is the checkout another user's?"
    command -v flock >/dev/null 2>&1 || return 0
    exec 9>build/setup.lock
    flock --nonblock 9 || { say "waiting for another set-up of this checkout"; flock 9; }
}

# Lines of setup-packages.txt, as `PACKAGE PROOF WHAT FOR`.
wanted() { sed -n -e 's/[[:space:]]*#[[:space:]]*/ /' -e '/^[a-z]/p' "$packages"; }

# The same lines, only those whose proof is not there, or that dpkg has left half-way.
missing() {
    unfinished=" $(unfinished_packages | tr '\n' ' ')"
    wanted | while read -r package proof use; do
        case $unfinished in *" $package "*) ;; *) ! present "$proof" || continue ;; esac
        printf '%s %s %s\n' "$package" "$proof" "$use"
    done
}

present() {
    case $1 in
        venv-of-python) find_python >/dev/null ;;
        any-virtiofsd) has_virtiofsd ;;
        /*) [ -e "$1" ] ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# In Debian 12 QEMU's own packages bring it, and there is no other.
has_virtiofsd() {
    [ "$(system debian)" != 12 ] || return 0
    [ -x /usr/libexec/virtiofsd ] || [ -x /usr/lib/virtiofsd ] || command -v virtiofsd >/dev/null 2>&1
}

unfinished_packages() {
    command -v dpkg-query >/dev/null 2>&1 || return 0
    # shellcheck disable=SC2016
    wanted | cut -d ' ' -f 1 |
        xargs dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' 2>/dev/null |
        sed -n -E 's/ (unpacked|half-.*|triggers-.*)$//p'
}

# A Python of 3.11 or later that can make virtual environments; never itself one's.
find_python() {
    for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
        "$candidate" -c 'if True:
            import sys, venv, ensurepip
            sys.exit(1) if sys.version_info < (3, 11) else print(sys._base_executable)
        ' 2>/dev/null && return 0
    done
    return 1
}

system() { # its name for people, then Debian's release number or nothing
    ( ID='' VERSION_ID='' PRETTY_NAME=$(uname -s)
      # shellcheck disable=SC1091
      [ ! -r /etc/os-release ] || . /etc/os-release
      case $1 in
          name) printf '%s' "$PRETTY_NAME" ;;
          debian) [ "$ID" != debian ] || printf '%s' "$VERSION_ID" ;;
      esac )
}

install_packages() {
    lines=$(missing)
    [ -n "$lines" ] || return 0
    case $(system debian) in
        12|13) ;;
        *) name_and_stop "$lines" ;;
    esac
    names=$(printf '%s\n' "$lines" | cut -d ' ' -f 1 | tr '\n' ' ')
    say "installing with apt: $names"
    log=build/setup-apt.log
    if ! apt_install "$names" >"$log" 9>&-; then
        [ -s "$log" ] || die "apt could not be started as root: run tools/setup.sh as root once"
        complaints "$log" >&2
        die "apt failed (its whole output: $log). Run the same command again when that is mended"
    fi
    left=$(missing | cut -d ' ' -f 1 | tr '\n' ' ')
    [ -z "$left" ] || die "apt says it has installed these, but they do not work: $left(see $log)"
}

name_and_stop() {
    say "this is $(system name). Set-up is automatic on Debian 12 and 13; here, install this first:"
    printf '%s\n' "$1" | while read -r package proof use; do
        [ "$proof" != venv-of-python ] || proof='python3 with venv'
        say "$(printf '  %-22s %s; Debian'\''s package: %s' "$proof" "$use" "$package")"
    done
    exit 1
}

# Takes up what an interrupted run left, and waits for another apt (a new machine
# often updates itself). Until that one is through, dpkg cannot be mended: hence twice.
apt_install() {
    as_root sh -c "exec 2>&1 </dev/null
        export DEBIAN_FRONTEND=noninteractive
        install() {
            dpkg --configure -a || echo 'setup: going on, apt may mend it'
            apt-get install --yes --fix-broken --no-install-recommends \
                -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold $1
        }
        apt-get update || echo 'setup: going on with the lists that are there'
        install || install"
}

# Of apt's output: what it says is wrong, the first cause first.
complaints() {
    grep -E '^(E|W|Err|dpkg|setup):' "$1" | awk '!seen[$0]++' | head -n 12 | grep . ||
        tail -n 12 "$1"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; return; fi
    command -v sudo >/dev/null 2>&1 ||
        die "that needs root, and there is no sudo: run tools/setup.sh as root once"
    sudo "$@"
}

# What the environment is made for: these versions, this place (scripts hold it), this Python.
fingerprint() {
    {
        cat requirements.lock
        pwd
        "$venv/bin/python" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null || echo none
    } | sha256sum
}

made_for() { cat "$venv/$1" 2>/dev/null || :; }

make_venv() {
    if [ "$(made_for installed)" != "$(fingerprint)" ]; then
        python=$(find_python) || die "here is no Python 3.11 or later with venv"
        say "making the virtual environment in $venv with $python (about a minute)"
        rm -rf "$venv"
        "$python" -m venv "$venv"
        pip_install --require-hashes -r requirements.lock
        fingerprint >"$venv/installed"
    fi
    project=$(sha256sum <pyproject.toml)
    if [ "$(made_for project)" != "$project" ]; then
        pip_install --no-deps --no-build-isolation -e .
        printf '%s\n' "$project" >"$venv/project"
    fi
}

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet install "$@" ||
        die "pip failed (see above). Run the same command again when that is mended"
}

# Real vsock without a kernel module on the host; optional, see README.md.
make_vhost_device_vsock() {
    binary=build/cargo/bin/vhost-device-vsock
    [ ! -x "$binary" ] || return 0
    ! command -v vhost-device-vsock >/dev/null 2>&1 || return 0
    command -v cargo >/dev/null 2>&1 || return 0
    [ ! -c /dev/vhost-vsock ] || return 0
    say "building vhost-device-vsock with cargo (a minute or two, once)"
    if ! cargo install --quiet --locked --version "$(cat tools/vhost-device-vsock.version)" \
        --root build/cargo vhost-device-vsock >build/setup-cargo.log 2>&1; then
        say "it could not be built (build/setup-cargo.log); virtio-serial is used instead"
    fi
}

one_at_a_time
[ "$(uname -m)" = x86_64 ] || say "this is $(uname -m), but the guest image is built on x86-64 only"
install_packages
make_venv
if [ "${1:-}" = --with-vsock ]; then make_vhost_device_vsock; fi
