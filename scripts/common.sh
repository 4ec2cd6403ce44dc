# Shared functions of the set-up scripts. Source this file, don't run it.
# shellcheck shell=sh

# Debian keeps root's programs here, and these folders are not on every user's path.
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

# Installs Debian packages. Without root, it prints the command that does so.
install_packages() {
    has apt-get || die "some programs are missing, and there is no apt-get here to install them;
please install the equivalent of these Debian packages: $*"
    if [ "$(id -u)" != 0 ]; then
        die "packages are missing, and only root can install them; please run:
    sudo apt-get update && sudo apt-get install --no-install-recommends $*"
    fi
    say "installing $*"
    # The usual reason for a failure is an old package list, so update it and try again.
    apt_get install "$@" || { apt_get update && apt_get install "$@"; } ||
        die "apt-get could not install: $*"
}

# Installs what the lock $2 names into the Python environment $1: these files, by their hashes, and nothing else. Without
# --no-deps, pip 23 looks for the newest version of a package that another one wants with an extra, and then refuses it.
install_locked() {
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: --requirement "$2" >&2
}

# The same with uv, into an environment that uv has made. It is faster where there is much to install.
install_locked_by_uv() {
    "$root/scripts/tool" uv pip install --quiet --python "$1" --no-deps --require-hashes \
        --only-binary :all: --requirement "$2" >&2
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends "$@" \
        </dev/null >&2
}
