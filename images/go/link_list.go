package ld

// The packages of which the symbols are prepared are in a list, with the places of their objects, which a link then need
// not search for.
//
// install.sh adds this file to the linker's package ld. link_change.py makes the linker use it.

import (
	"cmd/internal/bio"
	"cmd/internal/goobj"
	"cmd/link/internal/loader"
	"cmd/link/internal/sym"
	"errors"
	"flag"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Without the list, it is made of the packages that file.packages names.
var flagPrepared = flag.String("prepared", "", "load the packages of the list `file` first, with their symbols in file.symbols")

// objectPlaces has the places of each package's objects, in turn offset and length, while a list is made.
var objectPlaces map[*sym.Library][]int64

// preparedFlags returns the loader's flags for prepared packages.
func preparedFlags() uint32 {
	if *flagPrepared == "" {
		return 0
	}
	return loader.FlagPrepared
}

// loadPrepared loads the prepared packages, if there are any.
func loadPrepared(ctxt *Link) {
	if *flagPrepared == "" {
		return
	}
	list, err := os.ReadFile(*flagPrepared)
	switch {
	case err == nil:
		loadListed(ctxt, strings.Split(strings.TrimSuffix(string(list), "\n"), "\n"))
	case errors.Is(err, fs.ErrNotExist):
		makeList(ctxt)
	default:
		Exitf("cannot read the list of prepared packages: %v", err)
	}
	ctxt.loader.Prepare(*flagPrepared + ".symbols")
	waitForProgram()
}

// waitForProgram waits for a word on standard input: the program may still be compiled. Without one there is no program.
func waitForProgram() {
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		Exit(2)
	}
}

// loadListed loads the packages of a list. Each line has a package and the places of its objects.
func loadListed(ctxt *Link, list []string) {
	libraries := make([]*sym.Library, len(list))
	for i, line := range list {
		name, _, _ := strings.Cut(line, " ")
		libraries[i] = addPrepared(ctxt, name)
	}
	for i, library := range libraries {
		file, err := bio.Open(library.File)
		if err != nil {
			Exitf("cannot open a prepared package: %v", err)
		}
		places := strings.Fields(list[i])[1:]
		for ; len(places) > 0; places = places[2:] {
			unit := &sym.CompilationUnit{Lib: library}
			library.Units = append(library.Units, unit)
			file.MustSeek(atolwhex(places[0]), 0)
			fingerprint := ctxt.loader.Preload(ctxt.IncVersion(), file, library, unit, atolwhex(places[1]))
			if library.Fingerprint.IsZero() {
				library.Fingerprint = fingerprint
			}
		}
		addImports(ctxt, library, library.File)
		file.Close()
	}
}

// makeList loads the packages that are to be prepared as all others are loaded, and makes the list of them.
func makeList(ctxt *Link) {
	names, err := os.ReadFile(*flagPrepared + ".packages")
	if err != nil {
		Exitf("cannot read the names of the packages to prepare: %v", err)
	}
	var libraries []*sym.Library
	for _, name := range strings.Fields(string(names)) {
		libraries = append(libraries, addPrepared(ctxt, name))
	}
	objectPlaces = map[*sym.Library][]int64{}
	var list strings.Builder
	for _, library := range libraries {
		loadobjfile(ctxt, library)
		list.WriteString(library.Pkg)
		for _, number := range objectPlaces[library] {
			list.WriteString(" " + strconv.FormatInt(number, 10))
		}
		list.WriteString("\n")
	}
	objectPlaces = nil
	if err := os.WriteFile(*flagPrepared, []byte(list.String()), 0o666); err != nil {
		Exitf("cannot write the list of prepared packages: %v", err)
	}
}

func addPrepared(ctxt *Link, name string) *sym.Library {
	file := ctxt.PackageFile[name]
	if file == "" {
		Exitf("cannot find the package %s, which is to be prepared", name)
	}
	return addlibpath(ctxt, "prepared", "prepared", file, name, "", goobj.FingerprintType{})
}

// noteObject notes the place of an object, if a list is made.
func noteObject(library *sym.Library, offset, length int64) {
	if objectPlaces != nil {
		objectPlaces[library] = append(objectPlaces[library], offset, length)
	}
}
