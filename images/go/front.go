// Front is what a sandbox finds under the name go, and as go-program and go-syntax, which have files
// of their own. For "go run" of files that import nothing but the standard library, the go command
// spends more than half of its time on finding out that everything is compiled already, which is how
// the image was built. For such files the front starts the compiler, the linker and the program
// itself, in the words that the go command used when the image was built. Everything else it leaves
// to the go command, and so it does where anything is not as it expects.
package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"go/build"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	root = "/usr/local/go"
	// The go command finds its root two folders above itself.
	goCommand = root + "/ahead/go"
)

// The files that install.sh leaves here: the image's settings of the go command, the words with which it
// starts the compiler and the linker, and the packages that a program may import.
var (
	//go:embed settings
	settings string
	//go:embed compile
	compile string
	//go:embed link
	link string
	//go:embed imports
	imports string
)

func main() {
	silenceTelemetry()
	switch filepath.Base(os.Args[0]) {
	case "go-program":
		os.Exit(program(os.Args[1:]))
	case "go-syntax":
		os.Exit(syntax(os.Args[1:]))
	}
	if status, done := run(os.Args[1:]); done {
		os.Exit(status)
	}
	os.Exit(become(goCommand, os.Args[1:]))
}

// become goes on as another program. It returns only if that can't be started.
func become(path string, args []string) (status int) {
	err := syscall.Exec(path, append([]string{path}, args...), os.Environ())
	os.Stderr.WriteString("go: " + path + ": " + err.Error() + "\n")
	return 2
}

// silenceTelemetry keeps the go command from starting a second process that counts its uses for a
// report which could never be sent. Every sandbox has an empty home, so it would be started each
// time. A value that was set is left alone.
func silenceTelemetry() {
	config, err := os.UserConfigDir()
	if err != nil {
		return
	}
	folder := filepath.Join(config, "go", "telemetry")
	if os.MkdirAll(folder, 0o777) != nil {
		return
	}
	file, err := os.OpenFile(filepath.Join(folder, "mode"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return
	}
	file.WriteString("off\n")
	file.Close()
}

// run does what "go run" does, and tells the exit status. It is not done where it has to be left
// to the go command; nothing was printed then.
func run(args []string) (status int, done bool) {
	if len(args) == 0 || args[0] != "run" {
		return 0, false
	}
	files, args := split(args[1:])
	if len(files) == 0 {
		return 0, false
	}
	made, done := compileAndLink(files, files[0])
	if !done {
		return 0, false
	}
	defer func() {
		if err := os.RemoveAll(made.work); err != nil {
			os.Stderr.WriteString("go: " + err.Error() + "\n")
			status = 1
		}
	}()
	if made.errors != "" {
		os.Stderr.WriteString(made.errors)
		return 1, true
	}
	return runProgram(made.program, args), true
}

// made is a program, or what the compiler says of one.
type made struct {
	// work is the folder that it is in, so that the caller removes it.
	work, program, errors string
}

// compileAndLink makes the program of these files of the working directory, which has the name of one
// of them. It is not done where it has to be left to the go command; nothing is left then.
func compileAndLink(files []string, name string) (result made, done bool) {
	if !settingsAreTheImage() {
		return made{}, false
	}
	dir, ok := folderOutsideModules()
	if !ok || !onlyStandard(dir, files) {
		return made{}, false
	}
	identity, err := identityOf(files)
	if err != nil {
		return made{}, false
	}

	work, err := workFolder()
	if err != nil {
		return made{}, false
	}
	defer func() {
		if !done {
			os.RemoveAll(work)
		}
	}()
	object := filepath.Join(work, "b001")
	program := executable(work, name)
	if os.MkdirAll(filepath.Dir(program), 0o777) != nil {
		return made{}, false
	}
	fill := strings.NewReplacer(
		"{dir}", dir,
		"{identity}", identity,
		"{object}", object,
		"{processors}", strconv.Itoa(runtime.GOMAXPROCS(0)),
		"{program}", program,
	)
	words := func(recorded string) []string {
		return strings.Split(fill.Replace(strings.TrimSuffix(recorded, "\n")), "\n")
	}

	// The linker loads the standard library while the compiler runs, and then waits for a word on
	// its standard input. Nearly all that it allocates lives until it ends, so collecting garbage
	// would free next to nothing.
	linker := tool(words(link), "GOGC=off")
	var linked bytes.Buffer
	linker.Stdout, linker.Stderr = &linked, &linked
	compiled, err := linker.StdinPipe()
	if err != nil || linker.Start() != nil {
		return made{}, false
	}
	defer linker.Wait()
	defer linker.Process.Kill()

	command := words(compile)
	for _, file := range files {
		command = append(command, filepath.Join(dir, file))
	}
	printed, err := tool(command).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && len(printed) > 0 {
		return made{work: work, errors: report(string(printed), work, dir)}, true
	}
	if err != nil || len(printed) > 0 {
		return made{}, false
	}
	if _, err := compiled.Write([]byte("compiled\n")); err != nil {
		return made{}, false
	}
	if linker.Wait() != nil || linked.Len() > 0 {
		return made{}, false
	}
	return made{work: work, program: program}, true
}

// programAge is the age from which a program has surely been started.
const programAge = 2 * time.Second

// workFolder makes a folder for a program. Those of programs that ran in this sandbox before are removed: their
// process has become the program, so it can't do that itself. One that still runs does not need its file.
func workFolder() (string, error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), "go-build*", "b001", "exe", "*"))
	for _, program := range old {
		if info, err := os.Lstat(program); err == nil && time.Since(info.ModTime()) > programAge {
			os.RemoveAll(filepath.Dir(filepath.Dir(filepath.Dir(program))))
		}
	}
	return os.MkdirTemp("", "go-build")
}

// executable is where the program of a file is made below a folder.
func executable(work, file string) string {
	return filepath.Join(work, "b001", "exe", strings.TrimSuffix(filepath.Base(file), ".go"))
}

// settingsAreTheImage tells whether the environment has all of the image's settings and no others
// that could make the go command do something else.
func settingsAreTheImage() bool {
	expected := strings.Fields(settings)
	found := 0
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case slices.Contains(expected, variable):
			found++
		case name == "GOGC", name == "GOMAXPROCS", name == "GOMEMLIMIT", name == "GOTRACEBACK":
			// These are for the runtime of every Go program.
		case strings.HasPrefix(name, "GO"), strings.HasPrefix(name, "CGO"):
			return false
		}
	}
	return found == len(expected)
}

// folderOutsideModules is the working directory, if it belongs to no module, no workspace and no
// GOPATH.
func folderOutsideModules() (string, bool) {
	dir, err := os.Getwd()
	if err != nil || !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || !plain(dir, "/") {
		return "", false
	}
	for _, other := range []string{root, os.Getenv("GOPATH")} {
		if strings.HasPrefix(dir+"/", other+"/") {
			return "", false
		}
	}
	for parent := dir; ; parent = filepath.Dir(parent) {
		for _, name := range []string{"go.mod", "go.work"} {
			if _, err := os.Lstat(filepath.Join(parent, name)); !errors.Is(err, fs.ErrNotExist) {
				return "", false
			}
		}
		if parent == "/" {
			return dir, true
		}
	}
}

// split separates the files of the program from its arguments, where the go command does.
func split(args []string) (files, rest []string) {
	count := 0
	for count < len(args) && strings.HasSuffix(args[count], ".go") {
		count++
	}
	return args[:count], args[count:]
}

// onlyStandard tells whether the files are in the folder and are a program that the recorded words
// are right for. They are read by the same code as in the go command.
func onlyStandard(dir string, files []string) bool {
	var infos []fs.FileInfo
	var seen []string
	for _, file := range files {
		name := strings.TrimPrefix(file, "./")
		folded := strings.ToLower(name)
		if !plain(name, "") || strings.ContainsRune("._-", rune(name[0])) ||
			strings.HasSuffix(name, "_test.go") || slices.Contains(seen, folded) {
			return false
		}
		seen = append(seen, folded)
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() {
			return false
		}
		infos = append(infos, info)
	}
	if len(infos) == 0 {
		return false
	}

	context := build.Default
	context.UseAllFiles = true
	context.ReadDir = func(string) ([]fs.FileInfo, error) { return infos, nil }
	found, err := context.ImportDir(dir, 0)
	if err != nil || found.Name != "main" || found.ImportComment != "" ||
		len(found.GoFiles) != len(files) || len(found.EmbedPatterns) > 0 {
		return false
	}
	// These change the linker's flags.
	if slices.ContainsFunc(found.Directives, func(directive build.Directive) bool {
		return strings.HasPrefix(directive.Text, "//go:debug")
	}) {
		return false
	}
	standard := strings.Fields(imports)
	for _, path := range found.Imports {
		if !slices.Contains(standard, path) {
			return false
		}
	}
	return true
}

// plain tells whether a name has only characters without a special meaning.
func plain(name, more string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9') &&
			!strings.ContainsRune("._-"+more, r)
	})
}

// identityOf tells programs apart, in the form in which the go command does it.
func identityOf(files []string) (string, error) {
	hash := sha256.New()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		hash.Write([]byte(file + " " + strconv.Itoa(len(content)) + "\n"))
		hash.Write(content)
	}
	return base64.RawURLEncoding.EncodeToString(hash.Sum(nil)[:15]), nil
}

// tool is one of the tools, in the environment that the go command gives it.
func tool(command []string, variables ...string) *exec.Cmd {
	tool := exec.Command(command[0], command[1:]...)
	tool.Env = append(append(os.Environ(), "GOROOT="+root), variables...)
	return tool
}

// report words the compiler's messages as the go command does.
func report(printed, work, dir string) string {
	if !strings.HasSuffix(printed, "\n") {
		printed += "\n"
	}
	printed = replacePrefix(printed, work, "$WORK")
	for parent := dir; parent != "/"; parent = filepath.Dir(parent) {
		if short, err := filepath.Rel(dir, parent); err == nil && len(short) < len(parent) {
			printed = replacePrefix(printed, parent, short)
		}
	}
	return "# command-line-arguments\n" + printed
}

// replacePrefix replaces a path where it begins a word.
func replacePrefix(text, path, by string) string {
	for _, before := range []string{" ", "\n", "\n\t"} {
		text = strings.ReplaceAll(text, before+path, before+by)
	}
	if rest, ok := strings.CutPrefix(text, path); ok {
		text = by + rest
	}
	return text
}

// runProgram gives the program what it has under "go run", and says what the go command says when
// it has ended.
func runProgram(path string, args []string) (status int) {
	findGo()
	program := exec.Command(path, args...)
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr

	// Signals that a terminal sends are for the program. One of them is remembered, as the go
	// command does.
	var interrupted atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGQUIT)
	go func() {
		<-signals
		interrupted.Store(true)
	}()

	err := program.Run()
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
	}
	if err != nil || interrupted.Load() {
		return 1
	}
	return 0
}

// findGo lets programs find the go command first, as "go run" does, with the same variable in the same place.
func findGo() {
	search := root + "/bin"
	if old := os.Getenv("PATH"); old != "" {
		search += ":" + old
	}
	os.Unsetenv("PATH")
	os.Setenv("PATH", search)
}
