#!/bin/sh
# Starts a command that asks the runner for packages: pip, pip3, uv and uvx with the image's Python, npm and npx with its Node.js.
name=${0##*/}
case $name in
    npm | npx) interpreter=node command=/.isolator/commands/npm/main.cjs ;;
    *) interpreter=python3 command=/.isolator/commands/pip ;;
esac
if ! command -v "$interpreter" >/dev/null; then
    echo "$name: this image has no $interpreter, so there is nothing to install packages for" >&2
    exit 127
fi
exec "$interpreter" "$command" "$name" "$@"
