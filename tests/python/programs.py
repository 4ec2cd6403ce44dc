"""Programs that print the same in every language."""

HELLO = {
    "python": 'print("Hello, Wörld!")\n',
    "javascript": 'console.log("Hello, Wörld!");\n',
    "go": 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("Hello, Wörld!") }\n',
}

# Print a line, and a word on standard error.
BOTH_STREAMS = {
    "python": "import sys; print('out'); sys.stderr.write('err')",
    "javascript": "console.log('out'); process.stderr.write('err')",
    "go": 'package main\n\nimport ("fmt"; "os")\n\nfunc main() { fmt.Println("out"); fmt.Fprint(os.Stderr, "err") }\n',
}

# Prints the arguments, a file and standard input.
ECHO = {
    "python": (
        "import sys\n"
        'print(sys.argv[1:], open("data/in.txt").read(), sys.stdin.read(), sep="|", end="")\n'
    ),
    "javascript": (
        'const fs = require("fs");\n'
        "const args = process.argv.slice(2).map((a) => `'${a}'`).join(', ');\n"
        'const parts = [`[${args}]`, fs.readFileSync("data/in.txt"), fs.readFileSync(0)];\n'
        'process.stdout.write(parts.join("|"));\n'
    ),
    "go": (
        "package main\n"
        'import ("fmt"; "io"; "os"; "strings")\n'
        "func main() {\n"
        '\tdata, _ := os.ReadFile("data/in.txt")\n'
        "\tin, _ := io.ReadAll(os.Stdin)\n"
        "\targs := make([]string, 0)\n"
        "\tfor _, a := range os.Args[1:] { args = append(args, \"'\"+a+\"'\") }\n"
        '\tfmt.Printf("[%s]|%s|%s", strings.Join(args, ", "), data, in)\n'
        "}\n"
    ),
}
