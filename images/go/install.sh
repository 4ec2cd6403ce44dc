#!/bin/sh
# Installs the Go toolchain into a fresh Debian root and compiles the standard
# library ahead. Runs as root, with network, as /build/install.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

prepare

unpack_wheel "$here/unpacked"
root=/usr/local/go
rm -rf "$root"
mv "$here/unpacked/go" "$root"
rm -rf "$here/unpacked"
chmod -R u=rwX,go=rX "$root"
# The archive does not keep the right to execute.
chmod 755 "$root"/bin/*
find "$root/pkg/tool" -type f -exec chmod 755 {} +

# What is compiled is found again under a hash of the settings, so these have
# to be those of the image. The cache is only read later: the go command finds
# everything of the standard library in it and goes on without storing what it
# makes of the user's code.
PATH=$root/bin:$PATH
export PATH
export GOCACHE=/usr/local/go-cache GOPATH="$here/gopath" GOENV=off GOFLAGS=-buildvcs=false
export GO111MODULE=auto GOPROXY=off GOSUMDB=off GOTOOLCHAIN=local CGO_ENABLED=0 TMPDIR=/var/tmp

# The report of "go test -coverprofile" needs a tool that the archive leaves to
# be built on demand, from sources that do not stay. What it is compiled from
# is not to stay in the cache either.
GOCACHE=$here/tool-cache go build -trimpath -ldflags='-s -w' -o "$(go env GOTOOLDIR)/covdata" cmd/covdata
rm -rf "$here/tool-cache"

# Other systems and processors cannot be compiled for without their standard
# library, and the go command reads every file of a package that it uses. So
# all that is not for this machine goes before anything is compiled. The lists
# of names are the ones the go command itself has.
python3 - "$root" "$("$root/bin/go" env GOARCH)" <<'PYTHON'
import os
import re
import shutil
import sys

root, arch = sys.argv[1:]
names = open(os.path.join(root, "src/internal/syslist/syslist.go")).read()


def known(table):
    body = re.search(r"var %s = map\[string\]bool\{(.*?)\n\}" % table, names, re.S).group(1)
    return set(re.findall(r'"(\w+)"', body))


systems, archs = known("KnownOS"), known("KnownArch")


def foreign(file):
    stem, suffix = os.path.splitext(file)
    if suffix not in (".go", ".s", ".S", ".h", ".c", ".syso"):
        return False
    if stem.endswith("_test"):
        return True
    parts = stem.split("_")[1:]
    if parts and parts[-1] in archs:
        system = parts[-2] if len(parts) > 1 and parts[-2] in systems else "linux"
        return parts[-1] != arch or system != "linux"
    return bool(parts) and parts[-1] in systems and parts[-1] != "linux"


# The sources of the commands only serve to build them again.
for name in ("src/cmd", "test", "api", "doc", "misc", "__init__.py"):
    path = os.path.join(root, name)
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)
for folder, folders, files in os.walk(os.path.join(root, "src")):
    if "testdata" in folders:
        folders.remove("testdata")
        shutil.rmtree(os.path.join(folder, "testdata"))
    for file in files:
        if foreign(file):
            os.remove(os.path.join(folder, file))
PYTHON
# These are for code that mixes Go and C, for which there is no C compiler.
rm -f "$root"/pkg/tool/*/cgo "$root"/pkg/tool/*/preprofile

# The go command also caches what each package imports, under the times of its
# files. Whole seconds survive every way of copying the root, and times that
# have passed are required.
find "$root" -exec touch -h -d @1700000000 {} +

go build std

# The checks of "go vet", which "go test" makes too, store facts about each
# package that a program imports. A program that imports every package leaves
# them all in the cache, and with them what a test binary is made of.
mkdir -p "$here/warm"
cd "$here/warm"
{
    echo 'package main'
    echo 'import ('
    go list std | grep -v -E '(^|/)(internal|vendor)(/|$)' | sed 's/.*/_ "&"/'
    echo ')'
    echo 'func main() {}'
} >main.go
cat >main_test.go <<'GO'
package main

import "testing"

func TestNothing(t *testing.T) {}
GO
printf 'module warm\n\ngo %s\n' "$(go env GOVERSION | sed 's/^go//')" >go.mod
go vet .
go test .
go test -cover .
go fix .
go run .
cd /
rm -rf "$here/warm" "$here/gopath"
chmod -R u=rwX,go=rX "$GOCACHE"

finish python3

# A build that cannot do its work has to fail here and not in a sandbox.
mkdir -p /tmp/check
cd /tmp/check
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"net/http"
	"os"
)

func main() { json.NewEncoder(os.Stdout).Encode(http.StatusText(200)) }
GO
test "$(go run main.go)" = '"OK"'
cd /
rm -rf /tmp/check
