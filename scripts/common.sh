# What the set-up scripts share; sourced, not run.
# shellcheck shell=sh

# Where Debian keeps what only root runs, which is not on everybody's path.
PATH=$PATH:/usr/sbin:/sbin

say() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

die() {
    say "$*"
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Installs the Debian packages, or says which commands would.
install_packages() {
    has apt-get || die "please install what Debian calls: $*"
    if [ "$(id -u)" != 0 ]; then
        die "packages are missing and only root can install them; please run:
    sudo apt-get update && sudo apt-get install --no-install-recommends $*"
    fi
    say "installing $*"
    # Stale package lists are the usual reason for a failure, so a second try follows an update.
    apt_get install "$@" || { apt_get update && apt_get install "$@"; } ||
        die "apt-get could not install: $*"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends "$@" \
        </dev/null >&2
}
