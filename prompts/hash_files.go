// Print checksums of files or folders.
// Usage: hash_files [-algo NAME] [-expect HEX] [PATH ...]   (NAME is sha256, sha512, sha1, md5 or crc32)
package main

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"flag"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

var algorithms = map[string]func() hash.Hash{
	"sha256": sha256.New,
	"sha512": sha512.New,
	"sha1":   sha1.New,
	"md5":    md5.New,
	"crc32":  func() hash.Hash { return crc32.NewIEEE() },
}

func fail(code int, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "hash_files: "+format+"\n", args...)
	os.Exit(code)
}

// sum streams its input, so the size of a file does not matter.
func sum(newHash func() hash.Hash, input io.Reader) (string, int64, error) {
	h := newHash()
	n, err := io.Copy(h, input)
	return hex.EncodeToString(h.Sum(nil)), n, err
}

func main() {
	algo := flag.String("algo", "sha256", "sha256, sha512, sha1, md5 or crc32")
	expect := flag.String("expect", "", "expected checksum in hexadecimal, for a single input")
	flag.Parse()
	newHash, known := algorithms[strings.ToLower(*algo)]
	if !known {
		fail(2, "unknown algorithm %q; use sha256, sha512, sha1, md5 or crc32", *algo)
	}
	var last string
	var files int
	report := func(name string, input io.Reader) {
		digest, size, err := sum(newHash, input)
		if err != nil {
			fail(2, "cannot read %s: %v", name, err)
		}
		fmt.Printf("%s  %d  %s\n", digest, size, name)
		last, files = digest, files+1
	}
	if flag.NArg() == 0 {
		report("-", os.Stdin)
	}
	for _, root := range flag.Args() {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			// A link named as an argument is followed, but inside a directory only regular files count.
			if entry.IsDir() || (path != root && !entry.Type().IsRegular()) {
				return nil
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			report(path, file)
			return nil
		})
		if err != nil {
			fail(2, "%v", err)
		}
	}
	if *expect == "" {
		return
	}
	if files != 1 {
		fail(2, "-expect needs exactly one input, but there were %d", files)
	}
	if !strings.EqualFold(strings.TrimSpace(*expect), last) {
		fail(1, "the checksum differs from the expected %s", *expect)
	}
	fmt.Println("the checksum is as expected")
}
