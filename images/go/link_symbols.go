package loader

// The symbols of the packages that programs use most are prepared: a link of a small program spends a third of its time on
// finding out which symbols there are, some hundred thousand, and they are the same each time. The first link writes them to
// a file, as they are in memory. Every later link of the same packages maps that file, and goes on as if it had read the
// symbols of those packages from their objects.
//
// install.sh adds this file to the linker's package loader. link_change.py makes the loader use it.

import (
	"cmd/internal/goobj"
	"encoding/binary"
	"errors"
	"io/fs"
	"log"
	"os"
	"slices"
	"syscall"
	"unsafe"
)

// FlagPrepared says that the symbols of the first objects are prepared.
const FlagPrepared = 1 << 8

// preparedFormat begins the file. It changes with what the file has.
const preparedFormat = 0x69736f31

// roomForOthers is the number of symbols that a program usually adds to the prepared ones.
const roomForOthers = 4096

// prepared has the symbols of the first objects. In each table, a symbol is at the first free place from its hash on; a
// free place has 0.
type prepared struct {
	file    string
	objects []*oReader
	names   [2][]Sym // by name, for ABI0 and ABIInternal
	hash64  []Sym    // by short content
	hash    []Sym    // by longer content
}

// Prepare says that the symbols of all objects that are loaded by now are in a file, or should be written to it.
func (l *Loader) Prepare(file string) {
	l.prepared.file = file
	l.prepared.objects = slices.Clone(l.objs[goObjStart:])
}

// unprepared returns the other objects.
func (l *Loader) unprepared() []*oReader {
	return l.objs[goObjStart+len(l.prepared.objects):]
}

// namesToExpect returns how many names need room, of the number in a program without prepared symbols.
func namesToExpect(flags uint32, all int) int {
	if flags&FlagPrepared != 0 {
		return 0
	}
	return all
}

// loadPrepared loads the symbols of the prepared objects from the file. Without the file it loads them from the objects,
// and writes it.
func (st *loadState) loadPrepared() {
	l := st.l
	if len(l.prepared.objects) == 0 {
		return
	}
	content, err := mapped(l.prepared.file)
	if err == nil {
		l.readPrepared(content)
		return
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	for _, r := range l.prepared.objects {
		st.preloadSyms(r, pkgDef)
	}
	for _, r := range l.prepared.objects {
		st.preloadSyms(r, hashed64Def)
		st.preloadSyms(r, hashedDef)
		st.preloadSyms(r, nonPkgDef)
	}
	for _, r := range l.prepared.objects {
		l.resolveNames(r)
	}
	if err := os.WriteFile(l.prepared.file, st.preparedContent(), 0o666); err != nil {
		log.Fatal(err)
	}
}

// resolveNames resolves the names in an object for which there is a symbol. The others are resolved in each link, because
// its program can define them.
func (l *Loader) resolveNames(r *oReader) {
	defined := uint32(r.NAlldef())
	for i := range uint32(r.NNonpkgref()) {
		reference := r.Sym(defined + i)
		found := l.Lookup(reference.Name(r.Reader), abiToVer(reference.ABI(), r.version))
		if found == 0 {
			continue
		}
		r.syms[defined+i] = found
		if reference.Local() {
			l.SetAttrLocal(found, true)
		}
		if reference.UsedInIface() {
			l.SetAttrUsedInIface(found, true)
		}
	}
}

// preparedContent returns what is written to the file: lists of numbers, each after its length.
func (st *loadState) preparedContent() []byte {
	l := st.l
	var content []uint32
	add := func(list []uint32) {
		content = append(append(content, uint32(len(list))), list...)
	}
	add(l.identity())
	add(numbers(l.objSyms))
	for _, r := range l.prepared.objects {
		add(numbers(r.syms))
	}
	for _, names := range l.symsByName {
		table := newTable(len(names))
		for name, i := range names {
			insert(table, hashOfName(name), i)
		}
		add(numbers(table))
	}
	short, long := newTable(len(st.hashed64Syms)), newTable(len(st.hashedSyms))
	for hash, s := range st.hashed64Syms {
		insert(short, hash, s.sym)
	}
	for hash, s := range st.hashedSyms {
		insert(long, binary.LittleEndian.Uint64(hash[:]), s.sym)
	}
	add(numbers(short))
	add(numbers(long))
	add(numbers(l.builtinSyms))
	add(numbers(l.attrLocal))
	add(numbers(l.attrUsedInIface))
	add(numbers(append(l.align, make([]uint8, 4-len(l.align)%4)...)))
	return unsafe.Slice((*byte)(unsafe.Pointer(&content[0])), 4*len(content))
}

// readPrepared takes the symbols from the content of the file.
func (l *Loader) readPrepared(content []uint32) {
	next := func() []uint32 {
		end := 1 + content[0]
		list := content[1:end]
		content = content[end:]
		return list
	}
	if !slices.Equal(next(), l.identity()) {
		log.Fatalf("%s was written for other packages", l.prepared.file)
	}
	symbols := listOf[objSym](next())
	l.objSyms = append(make([]objSym, 0, len(symbols)+cap(l.objSyms)+roomForOthers), symbols...)
	for _, r := range l.prepared.objects {
		copy(numbers(r.syms), next())
	}
	for _, table := range []*[]Sym{&l.prepared.names[0], &l.prepared.names[1], &l.prepared.hash64, &l.prepared.hash} {
		*table = listOf[Sym](next())
	}
	copy(l.builtinSyms, listOf[Sym](next()))
	l.growAttrBitmaps(len(l.objSyms))
	copy(l.attrLocal, next())
	copy(l.attrUsedInIface, next())
	l.align = append(l.align, listOf[uint8](next())...)
}

// identity tells which objects a file is for.
func (l *Loader) identity() []uint32 {
	identity := []uint32{preparedFormat}
	for _, r := range l.prepared.objects {
		fingerprint := r.Fingerprint()
		identity = append(identity, uint32(r.NAlldef()), uint32(r.NNonpkgref()))
		identity = append(identity, numbers(fingerprint[:])...)
	}
	return identity
}

// named finds a symbol by its name.
func (l *Loader) named(version int, name string) (Sym, bool) {
	if i, ok := l.symsByName[version][name]; ok {
		return i, true
	}
	i := find(l.prepared.names[version], hashOfName(name), func(i Sym) bool { return l.SymName(i) == name })
	return i, i != 0
}

// withShortContent finds a prepared symbol by its content.
func (l *Loader) withShortContent(hash uint64) (symAndSize, bool) {
	return l.withSize(find(l.prepared.hash64, hash, func(i Sym) bool {
		r, li := l.toLocal(i)
		return r.Hash64(li-uint32(r.ndef)) == hash
	}))
}

// withLongContent finds a prepared symbol by the hash of its content.
func (l *Loader) withLongContent(hash *goobj.HashType) (symAndSize, bool) {
	return l.withSize(find(l.prepared.hash, binary.LittleEndian.Uint64(hash[:]), func(i Sym) bool {
		r, li := l.toLocal(i)
		return *r.Hash(li - uint32(r.ndef+r.nhashed64def)) == *hash
	}))
}

func (l *Loader) withSize(i Sym) (symAndSize, bool) {
	if i == 0 {
		return symAndSize{}, false
	}
	r, li := l.toLocal(i)
	return symAndSize{i, r.Sym(li).Siz()}, true
}

// newTable returns a table that stays half empty.
func newTable(count int) []Sym {
	return make([]Sym, 2*count+1)
}

func insert(table []Sym, hash uint64, i Sym) {
	place := placeOf(table, hash)
	for table[place] != 0 {
		place = (place + 1) % len(table)
	}
	table[place] = i
}

// find returns the symbol with a hash for which is returns true, or 0.
func find(table []Sym, hash uint64, is func(Sym) bool) Sym {
	if len(table) == 0 {
		return 0
	}
	for place := placeOf(table, hash); ; place = (place + 1) % len(table) {
		if i := table[place]; i == 0 || is(i) {
			return i
		}
	}
}

// placeOf returns where the search for a hash begins. Short content is its own hash, so the bits are mixed.
func placeOf(table []Sym, hash uint64) int {
	return int(hash * 0x9e3779b97f4a7c15 >> 32 % uint64(len(table)))
}

// hashOfName returns the FNV-1a hash of a name.
func hashOfName(name string) uint64 {
	hash := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 0x100000001b3
	}
	return hash
}

// mapped returns a file's content, in memory that is not written.
func mapped(path string) ([]uint32, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	content, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_PRIVATE)
	return numbers(content), os.NewSyscallError("mmap", err)
}

// listOf returns the list that numbers are.
func listOf[T any](numbers []uint32) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(&numbers[0])), len(numbers)*4/int(unsafe.Sizeof(one)))
}

// numbers returns a list as the numbers that it is in memory.
func numbers[T any](list []T) []uint32 {
	if len(list) == 0 {
		return nil
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&list[0])), len(list)*int(unsafe.Sizeof(list[0]))/4)
}
