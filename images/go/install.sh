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

# Compiled packages are found again under a hash of the settings, so these have
# to be those of the image. The cache is only read later: the go command finds
# everything of the standard library in it and goes on without storing what it
# makes of the user's code.
PATH=$root/bin:$PATH
export PATH
settings=$(sed -n 's/^[ A-Z]* \(C\{0,1\}GO[0-9A-Z_]*=[^ ]*\).*/\1/p' "$here/Dockerfile")
# shellcheck disable=SC2086
export $settings
export TMPDIR=/var/tmp

# The report of "go test -coverprofile" needs a tool that the archive leaves to
# be built on demand, from sources that do not stay. What it is compiled from
# is not to stay in the cache either.
GOCACHE=$here/tool-cache go build -trimpath -ldflags='-s -w' -o "$(go env GOTOOLDIR)/covdata" cmd/covdata

# The front has a linker of its own, which link_symbols.go describes. It is made
# of the sources of the go command's, which stays as it is.
cp "$here/link_list.go" "$root/src/cmd/link/internal/ld/prepared.go"
cp "$here/link_symbols.go" "$root/src/cmd/link/internal/loader/prepared.go"
python3 "$here/link_change.py" "$root/src/cmd/link/internal"
GOCACHE=$here/tool-cache go build -trimpath -ldflags='-s -w' -o "$here/link" cmd/link

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
rm -rf "$here/warm"
chmod -R u=rwX,go=rX "$GOCACHE"

# The front, which front.go describes, starts the tools itself. It does so in
# the words of the go command, taken down here with names in the place of what
# differs from run to run.
ahead=$root/ahead
mkdir -p "$ahead/lean" "$here/front/sample"
cat >"$here/front/record" <<'SH'
#!/bin/sh
case $2 in
-V=full) ;;
*) printf '%s\n' "$@" >"/build/front/$(basename "$1")" ;;
esac
# The program's information about its own build is in the linker's list.
[ "${1##*/} $4" != 'link -importcfg' ] || grep '^modinfo ' "$5" >/build/front/modinfo
exec "$@"
SH
chmod 755 "$here/front/record"
cd "$here/front/sample"
cat >sample.go <<'GO'
package main

func main() {}
GO
# One processor alone is not put into words.
GOMAXPROCS=2 go run -toolexec "$here/front/record" sample.go
cd "$here/front"
object=$(sed -n 's,/_pkg_\.a$,,p' compile)
sed -i -e "\\,^$PWD/sample/sample\.go\$,d" \
    -e "s,^_$PWD/sample\$,_{dir}," \
    -e '/^-buildid$/{n;s,.*,{identity}/{identity},}' \
    -e 's,^-buildid=.*,-buildid={identity}/{identity}/{identity}/{identity},' \
    -e 's,^-c=.*,-c={processors},' \
    -e "s,^$object/exe/sample\$,{program}," \
    -e "s,^$object/\\(importcfg.*\\),$ahead/\\1," \
    -e "s,$object,{object},g" \
    compile link
sed -i "1s,.*,$ahead/link\\n-prepared\\n$ahead/prepared," link
printf '%s\n' "$settings" >settings

# Where the compiler and the linker find the standard library.
go list -export -f '{{if .Export}}packagefile {{.ImportPath}}={{.Export}}{{end}}' std >"$ahead/importcfg"
{
    echo unsafe
    sed 's/^packagefile \(.*\)=.*/\1/' "$ahead/importcfg" | grep -v -E '(^|/)(internal|vendor)(/|$)'
} >imports

# The linker looks at all of every package that a program is made of, and a
# third of that is for debuggers, of which "go run" keeps nothing. What programs
# are mostly made of is there a second time without it; the rest is the same.
GOCACHE=$here/lean-cache go list -export -deps -gcflags=all=-dwarf=false \
    -f '{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}' \
    bufio container/heap container/list container/ring crypto/md5 crypto/sha256 encoding/base64 \
    encoding/binary encoding/csv encoding/hex encoding/json flag fmt hash/crc32 hash/fnv \
    io/ioutil log maps math/big math/cmplx math/rand math/rand/v2 os/exec os/signal \
    path/filepath regexp runtime/debug sort text/tabwriter text/template unicode/utf16 >lean
while read -r path file; do
    cp "$file" "$ahead/lean/$(printf '%s' "$path" | tr / -).a"
done <lean
while IFS='=' read -r package file; do
    lean=$ahead/lean/$(printf '%s' "${package#packagefile }" | tr / -).a
    [ ! -e "$lean" ] || file=$lean
    printf '%s=%s\n' "$package" "$file"
done <"$ahead/importcfg" >"$ahead/importcfg.link"
cat modinfo >>"$ahead/importcfg.link"

# The packages of which the front's linker knows the symbols. More of them would
# cost every program more than they save some.
mv "$here/link" "$ahead/link"
go list -deps bufio bytes cmp container/heap container/list errors fmt io maps math math/bits \
    math/rand os slices sort strconv strings sync time unicode |
    sed '/^unsafe$/d' >"$ahead/prepared.packages"

cp "$here/front.go" "$here/program.go" "$here/syntax.go" .
printf 'module front\n\ngo %s\n' "$(go env GOVERSION | sed 's/^go//')" >go.mod
GOCACHE=$here/tool-cache go build -trimpath -ldflags='-s -w' -o "$here/front/go" .
mv "$root/bin/go" "$ahead/go"
mv "$here/front/go" "$root/bin/go"
ln -s go "$root/bin/go-program"
ln -s go "$root/bin/go-syntax"
cd /
rm -rf "$here/front" "$here/tool-cache" "$here/lean-cache"

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
cat >facts.go <<'GO'
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	fmt.Println(info, runtime.Version(), runtime.GOROOT(), filepath.Base(os.Args[0]), os.Args[1:])
	fmt.Printf("%q\n%s\n", os.Environ(), debug.Stack())
	var nothing *int
	fmt.Println(*nothing)
}
GO
# The front does this by itself, so the go command is not needed for it, and a
# program cannot tell which of the two has started it.
export HOME=/tmp/check
chmod a-x "$ahead/go"
test "$(go run main.go)" = '"OK"'
# That has written the list and the symbols of the prepared packages. With them
# a program becomes what it is if its link has to make them, byte for byte.
mkdir alone
cp main.go alone
for prepared in yes no; do
    rm -rf /tmp/go-build*
    [ $prepared = yes ] || rm "$ahead/prepared" "$ahead/prepared.symbols"
    test "$(cd alone && go-program main.go)" = '"OK"'
    mv /tmp/go-build*/b001/exe/main $prepared
done
cmp yes no
rm -r /tmp/go-build*
go run facts.go 1 2 >front.txt 2>&1 || :
chmod a+x "$ahead/go"
"$ahead/go" run facts.go 1 2 >command.txt 2>&1 || :
grep 'exit status 2' front.txt
cmp front.txt command.txt
rm main.go
status=0
go-program facts.go 1 2 >program.txt 2>&1 || status=$?
test "$status" = 2
if grep 'exit status' program.txt; then exit 1; fi
go-syntax facts.go
echo ')' >>facts.go
if go-syntax facts.go; then exit 1; fi
cd /
rm -rf /tmp/check
# Finished programs are cached too, each in a folder. These are never used again.
find "$GOCACHE" -mindepth 2 -type d -name '*-d' -prune -exec rm -r {} +
