// Count lines, words and bytes, and tell the encoding.
// Usage: line_stats [FILE ...]   (reads standard input without FILE)
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf8"
)

type stats struct {
	lines, blank, words, runes, size, invalid, nul           int
	lf, crlf, tabs, trailing, longest, longestLine, nonASCII int
	bom, openEnd                                             bool
}

// scan works on one line at a time, so a large file needs little memory unless it is one single line.
func scan(input io.Reader) (s stats, err error) {
	reader := bufio.NewReaderSize(input, 1<<16)
	for {
		line, readErr := reader.ReadBytes('\n')
		if len(line) > 0 {
			s.add(line)
		}
		if readErr == io.EOF {
			return s, nil
		}
		if readErr != nil {
			return s, readErr
		}
	}
}

func (s *stats) add(line []byte) {
	s.size += len(line)
	if s.lines == 0 && bytes.HasPrefix(line, []byte("\xef\xbb\xbf")) {
		s.bom, line = true, line[3:]
	}
	s.lines++
	body, ended := bytes.CutSuffix(line, []byte("\n"))
	s.openEnd = !ended
	if cut, carriage := bytes.CutSuffix(body, []byte("\r")); ended && carriage {
		body = cut
		s.crlf++
	} else if ended {
		s.lf++
	}
	s.runes += utf8.RuneCount(line)
	length, inWord := 0, false
	for rest := body; len(rest) > 0; length++ {
		r, width := utf8.DecodeRune(rest)
		if r == utf8.RuneError && width == 1 {
			s.invalid++
		} else if r >= utf8.RuneSelf {
			s.nonASCII++
		} else if r == 0 {
			s.nul++
		} else if r == '\t' {
			s.tabs++
		}
		if space := unicode.IsSpace(r); space == inWord {
			inWord = !space
			if inWord {
				s.words++
			}
		}
		rest = rest[width:]
	}
	if length > s.longest {
		s.longest, s.longestLine = length, s.lines
	}
	if trimmed := bytes.TrimSpace(body); len(trimmed) == 0 {
		s.blank++
	}
	if n := len(body); n > 0 && (body[n-1] == ' ' || body[n-1] == '\t') {
		s.trailing++
	}
}

func (s stats) encoding() string {
	switch {
	case s.nul > 0:
		return fmt.Sprintf("binary or UTF-16 (%d zero bytes)", s.nul)
	case s.invalid > 0:
		return fmt.Sprintf("not UTF-8 (%d invalid bytes)", s.invalid)
	case s.bom:
		return "UTF-8 with byte order mark"
	case s.nonASCII > 0:
		return fmt.Sprintf("UTF-8 (%d characters beyond ASCII)", s.nonASCII)
	}
	return "ASCII"
}

func show(name string, input io.Reader) {
	s, err := scan(input)
	if err != nil {
		fmt.Fprintf(os.Stderr, "line_stats: cannot read %s: %v\n", name, err)
		os.Exit(2)
	}
	fmt.Printf("%s: %d lines (%d blank), %d words, %d characters, %d bytes\n", name, s.lines, s.blank, s.words, s.runes, s.size)
	fmt.Printf("  encoding: %s\n  line endings: %d LF, %d CRLF", s.encoding(), s.lf, s.crlf)
	if s.openEnd {
		fmt.Print(", no newline at the end")
	}
	fmt.Printf("\n  longest line: %d characters (line %d)\n", s.longest, s.longestLine)
	fmt.Printf("  tabs: %d, lines with trailing blanks: %d\n", s.tabs, s.trailing)
}

func main() {
	if len(os.Args) < 2 {
		show("-", os.Stdin)
	}
	for _, path := range os.Args[1:] {
		file, err := os.Open(path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "line_stats: %v\nusage: line_stats [FILE ...]\n", err)
			os.Exit(2)
		}
		show(path, file)
		file.Close()
	}
}
