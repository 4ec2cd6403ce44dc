// List the most frequent words of a text.
// Usage: word_freq [-top N] [-min LENGTH] [FILE ...]   (reads standard input without FILE)
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// count reads one character at a time, so neither long files nor long lines are a problem.
func count(input io.Reader, minimum int, words map[string]int) (total int, err error) {
	reader := bufio.NewReaderSize(input, 1<<16)
	var word strings.Builder
	flush := func() {
		// An apostrophe belongs to a word such as "don't" but not to a quotation around it.
		text := strings.TrimRight(word.String(), "'")
		word.Reset()
		if text != "" && utf8.RuneCountInString(text) >= minimum {
			words[text]++
			total++
		}
	}
	for {
		r, size, err := reader.ReadRune()
		if err != nil {
			flush()
			if err == io.EOF {
				err = nil
			}
			return total, err
		}
		if r == unicode.ReplacementChar && size == 1 {
			// A byte that is not UTF-8 is read as Latin-1, where it has the same number.
			if err := reader.UnreadRune(); err != nil {
				return total, err
			}
			b, err := reader.ReadByte()
			if err != nil {
				return total, err
			}
			r = rune(b)
		}
		if r == '’' {
			r = '\''
		}
		if unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r) || (r == '\'' && word.Len() > 0) {
			word.WriteRune(unicode.ToLower(r))
		} else {
			flush()
		}
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "word_freq: %v\nusage: word_freq [-top N] [-min LENGTH] [FILE ...]\n", err)
	os.Exit(2)
}

func main() {
	top := flag.Int("top", 20, "how many words to list; 0 lists all")
	minimum := flag.Int("min", 1, "shortest word to count, in characters")
	flag.Parse()
	words, total := map[string]int{}, 0
	inputs := flag.Args()
	if len(inputs) == 0 {
		inputs = []string{"-"}
	}
	for _, path := range inputs {
		input := os.Stdin
		if path != "-" {
			file, err := os.Open(path)
			if err != nil {
				fail(err)
			}
			input = file
		}
		n, err := count(input, *minimum, words)
		if err != nil {
			fail(err)
		}
		total += n
		input.Close()
	}
	// Equal counts are ordered by the word, so that the output is the same every time.
	ranked := slices.SortedFunc(maps.Keys(words), func(a, b string) int {
		return cmp.Or(cmp.Compare(words[b], words[a]), strings.Compare(a, b))
	})
	fmt.Printf("%d words, %d distinct\n", total, len(ranked))
	for i, word := range ranked {
		if *top > 0 && i >= *top {
			break
		}
		fmt.Printf("%d\t%.2f%%\t%s\n", words[word], 100*float64(words[word])/float64(total), word)
	}
}
