package main

import (
	"go/build"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program makes the program that a file belongs to, and goes on as it, so that its exit code, its
// signals and all of its arguments are its own; "go run" has none of these. The first argument is the
// file. Its program is the package in its folder, of which the go command chooses the files, or the
// file alone if the package is without it. The status is reported only if there is no program.
func program(args []string) (status int) {
	if len(args) == 0 {
		return refuse("usage: go-program FILE [ARGUMENT...]")
	}
	for flag := range strings.FieldsSeq(os.Getenv("GOFLAGS")) {
		if tags, ok := strings.CutPrefix(flag, "-tags="); ok {
			build.Default.BuildTags = strings.Split(tags, ",")
		}
	}
	file, args := local(args[0]), args[1:]
	dir, name := filepath.Split(file)
	dir = local(filepath.Clean(dir))
	if !strings.HasSuffix(name, ".go") || strings.ContainsRune("_.-", rune(name[0])) {
		return refuse(file + ": the file of a program in Go has a name that ends with .go and does not begin with _ . or -")
	}
	isOfPackage, err := build.Default.MatchFile(dir, name)
	if err != nil {
		return refuse(err.Error())
	}
	target := []string{file}
	if isOfPackage {
		target = []string{dir}
	}
	if strings.HasSuffix(name, "_test.go") {
		return test(target, args)
	}

	found, err := read(dir, name, isOfPackage, false)
	if !slices.Contains(found.GoFiles, name) {
		if withC, _ := read(dir, name, isOfPackage, true); slices.Contains(withC.CgoFiles, name) {
			return refuse(file + `: there is no C compiler, so a program can't import "C"`)
		}
	}
	switch {
	case err != nil:
		return buildAndBecome(target, name, args)
	case found.Name != "main" && len(found.TestGoFiles)+len(found.XTestGoFiles) > 0:
		return test(target, args)
	case found.Name != "main":
		return refuse(file + ": package " + found.Name + " is no program: one has package main and func main")
	case len(found.SFiles)+len(found.SysoFiles) > 0:
		return buildAndBecome(target, name, args)
	}
	// Named one by one, so that the go command does not refuse files of the request in other languages.
	target = nil
	for _, file := range found.GoFiles {
		target = append(target, local(filepath.Join(dir, file)))
	}
	if dir == "." {
		if made, done := compileAndLink(found.GoFiles, name); done {
			if made.errors != "" {
				os.Stderr.WriteString(made.errors)
				return 1
			}
			findGo()
			return become(made.program, args)
		}
	}
	return buildAndBecome(target, name, args)
}

// local is a path that can't be taken for an option or for a package of the standard library.
func local(path string) string {
	if path == "." || filepath.IsAbs(path) || strings.HasPrefix(path, "./") {
		return path
	}
	return "./" + path
}

// read reads the package of a folder, or one file of it alone. It is read as on a machine with a C compiler
// or as here.
func read(dir, name string, isOfPackage, withC bool) (*build.Package, error) {
	context := build.Default
	context.CgoEnabled = withC
	if !isOfPackage {
		context.UseAllFiles = true
		context.ReadDir = func(string) ([]fs.FileInfo, error) {
			info, err := os.Stat(filepath.Join(dir, name))
			return []fs.FileInfo{info}, err
		}
	}
	return context.ImportDir(dir, 0)
}

// test goes on as "go test", for which the arguments are.
func test(target, args []string) (status int) {
	return become(goCommand, slices.Concat([]string{"test"}, target, args))
}

// buildAndBecome leaves it to the go command to make the program.
func buildAndBecome(target []string, name string, args []string) (status int) {
	work, err := workFolder()
	if err != nil {
		return refuse(err.Error())
	}
	path := executable(work, name)
	words := []string{"build", "-o", path}
	if !strings.Contains(os.Getenv("GOFLAGS"), "-ldflags") {
		// Nor does "go run" keep anything for debuggers.
		words = append(words, "-ldflags=-s -w")
	}
	command := exec.Command(goCommand, append(words, target...)...)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		if command.ProcessState == nil || !command.ProcessState.Exited() {
			os.Stderr.WriteString("go: " + err.Error() + "\n")
		}
		return 1
	}
	findGo()
	return become(path, args)
}

// refuse says why there is no program.
func refuse(why string) (status int) {
	os.Stderr.WriteString("go: " + why + "\n")
	return 1
}
