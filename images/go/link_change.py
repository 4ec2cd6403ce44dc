"""Changes the sources of Go's linker, below the folder that is named, so that it uses link_symbols.go and link_list.go."""

import pathlib
import sys

CHANGES = {
    "loader/loader.go": [
        ("	npkgsyms    int // ", "	prepared prepared\n\n	npkgsyms    int // "),
        ("make(map[string]Sym, 80000)", "make(map[string]Sym, namesToExpect(flags, 80000))"),
        ("make(map[string]Sym, 50000)", "make(map[string]Sym, namesToExpect(flags, 50000))"),
        # Symbols are found among the prepared ones, too.
        (
            "				s, existed := st.hashed64Syms[h64]\n",
            "				s, existed := st.hashed64Syms[h64]\n"
            "				if !existed {\n					s, existed = l.withShortContent(h64)\n				}\n",
        ),
        (
            "				s, existed := st.hashedSyms[*h]\n",
            "				s, existed := st.hashedSyms[*h]\n"
            "				if !existed {\n					s, existed = l.withLongContent(h)\n				}\n",
        ),
        ("oldi, existed := l.symsByName[ver][name]", "oldi, existed := l.named(ver, name)"),
        ("	return l.symsByName[ver][name]\n", "	i, _ := l.named(ver, name)\n	return i\n"),
        # Only the others are looked for in the objects.
        (
            "	for _, r := range l.objs[goObjStart:] {\n		symSize += ",
            "	for _, r := range l.unprepared() {\n		symSize += ",
        ),
        (
            "	for _, r := range l.objs[goObjStart:] {\n		st.preloadSyms(r, pkgDef)\n",
            "	st.loadPrepared()\n	for _, r := range l.unprepared() {\n		st.preloadSyms(r, pkgDef)\n",
        ),
        (
            "	for _, r := range l.objs[goObjStart:] {\n		st.preloadSyms(r, hashed64Def)\n",
            "	for _, r := range l.unprepared() {\n		st.preloadSyms(r, hashed64Def)\n",
        ),
        # References that are resolved stay so.
        (
            "i < n; i++ {\n		osym := r.Sym(ndef + i)\n",
            "i < n; i++ {\n		if r.syms[ndef+i] != 0 {\n			continue\n		}\n		osym := r.Sym(ndef + i)\n",
        ),
    ],
    "ld/lib.go": [
        ("loader.NewLoader(flags, ", "loader.NewLoader(flags|preparedFlags(), "),
        (
            "	// ctxt.Library grows during the loop, so not a range loop.\n	i := 0\n",
            "	loadPrepared(ctxt)\n	i := 0\n",
        ),
        (
            "func loadobjfile(ctxt *Link, lib *sym.Library) {\n",
            "func loadobjfile(ctxt *Link, lib *sym.Library) {\n	if len(lib.Units) != 0 {\n		return\n	}\n",
        ),
        (
            "	fingerprint := ctxt.loader.Preload(",
            "	noteObject(lib, f.Offset(), eof-f.Offset())\n	fingerprint := ctxt.loader.Preload(",
        ),
    ],
    # One call of the kernel makes all of the program's pages, instead of a fault for each.
    "ld/outbuf_mmap.go": [
        ("syscall.MAP_SHARED|syscall.MAP_FILE", "syscall.MAP_SHARED|syscall.MAP_FILE|syscall.MAP_POPULATE"),
    ],
}

folder = pathlib.Path(sys.argv[1])
for name, changes in CHANGES.items():
    text = (folder / name).read_text()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"link_change.py: this is in Go's {name} {text.count(old)} times, not once: {old!r}")
        text = text.replace(old, new)
    (folder / name).write_text(text)
