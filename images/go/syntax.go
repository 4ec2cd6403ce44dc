package main

import (
	"errors"
	"go/build"
	"go/scanner"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// notGo ends the compiler: while one of the files can't be read, it looks at nothing but the syntax of
// them all.
const notGo = "package main\n)\n"

// syntax prints what is wrong with the syntax of a file, in the words in which it is said when the
// file is run. The status is 1 then.
func syntax(args []string) (status int) {
	if len(args) != 1 {
		return refuse("usage: go-syntax FILE")
	}
	file := args[0]
	dir := filepath.Dir(file)
	// The go command reads the beginning of a file, up to its imports, before any compiler does.
	context := build.Default
	context.UseAllFiles = true
	context.ReadDir = func(string) ([]fs.FileInfo, error) {
		info, err := os.Stat(file)
		return []fs.FileInfo{info}, err
	}
	if found, err := context.ImportDir(dir, 0); len(found.InvalidGoFiles) > 0 {
		var all scanner.ErrorList
		if errors.As(err, &all) && len(all) > 0 {
			err = all[0]
		}
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}

	work, err := os.MkdirTemp("", "go-syntax")
	if err != nil {
		return refuse(err.Error())
	}
	defer os.RemoveAll(work)
	other := filepath.Join(work, "not.go")
	if err := os.WriteFile(other, []byte(notGo), 0o666); err != nil {
		return refuse(err.Error())
	}
	compiler, _, _ := strings.Cut(compile, "\n")
	printed, err := tool([]string{compiler, "-p", "main", "-o", filepath.Join(work, "not.a"), file, other}).CombinedOutput()
	if err == nil {
		return refuse("the compiler has read what can't be read")
	}
	for line := range strings.Lines(string(printed)) {
		if !strings.HasPrefix(line, other) {
			os.Stderr.WriteString(line)
			status = 1
		}
	}
	return status
}
