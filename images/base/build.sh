#!/bin/sh
# Makes a minimal Debian root file system and writes it as a tar archive to $1.
# The language images start from it wherever a base image cannot be pulled.
#
# usage: build.sh TARFILE [SUITE]
set -eu

die() {
    echo "build.sh: $*" >&2
    exit 1
}

[ $# -ge 1 ] && [ -n "$1" ] || die "usage: build.sh TARFILE [SUITE]"
out=$1
suite=${2:-trixie}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

host_id=$(. /etc/os-release 2>/dev/null && echo "${ID:-}") || host_id=
host_codename=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}") || host_codename=

[ "$(id -u)" = 0 ] || die "root is needed to make a root file system"

if ! command -v mmdebstrap >/dev/null 2>&1; then
    [ "$host_id" = debian ] || die "the program mmdebstrap is missing; install it and try again"
    echo "build.sh: installing mmdebstrap" >&2
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    # Stale package lists are the usual reason for a failure, so the second try
    # comes after an update.
    apt-get install -y --no-install-recommends mmdebstrap >&2 ||
        { apt-get update >&2 && apt-get install -y --no-install-recommends mmdebstrap >&2; } ||
        die "mmdebstrap is missing and could not be installed with apt-get"
fi
[ -e "$keyring" ] || die "$keyring is missing; install the package debian-archive-keyring"

# The mirrors are those this host already uses, with its release name replaced
# by the wanted one. Third-party sources do not carry the release as the whole
# suite name or as its stem, so they are left out. A host without usable
# sources gets an empty list, for which mmdebstrap has a default of its own.
sources=
if [ "$host_id" = debian ] && [ -n "$host_codename" ]; then
    sources=$(
        apt-get indextargets --format '$(CREATED_BY) $(REPO_URI) $(RELEASE) $(COMPONENT)' 2>/dev/null |
            awk -v from="$host_codename" -v to="$suite" -v key="$keyring" '
                $1 == "Packages" && $4 == "main" &&
                ($3 == from || $3 == from "-updates" || $3 == from "-security") {
                    sub(from, to, $3)
                    print "deb [signed-by=" key "] " $2 " " $3 " main"
                }' | sort -u
    )
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# Only packages that the keyring vouches for are taken, whatever the settings of
# this host allow. Engines make the devices of a sandbox themselves.
set -- --mode=root --variant=minbase --format=tar --skip=output/dev \
    --aptopt='Acquire::AllowInsecureRepositories "false"' \
    --aptopt='Acquire::Languages "none"' \
    --aptopt='Acquire::Retries "3"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"'

# A host behind an inspecting proxy trusts more authorities than the new root
# does, and it is the host's apt that downloads. The setting names a file of
# the host, so it is taken out of the new root again.
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
    set -- "$@" --aptopt='Acquire::https::CaInfo "/etc/ssl/certs/ca-certificates.crt"'
fi

# The archive appears under its final name only when it is complete.
if [ -n "$sources" ]; then
    printf '%s\n' "$sources" >"$tmp/sources.list"
    mmdebstrap "$@" "$suite" "$out.part" "$tmp/sources.list" >&2
else
    mmdebstrap "$@" --keyring="$keyring" "$suite" "$out.part" >&2
fi || { rm -f "$out.part"; die "mmdebstrap could not make a Debian $suite root"; }
mv "$out.part" "$out"
