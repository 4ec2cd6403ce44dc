// Summarise the output of go test -bench, or compare two runs.
// Usage: bench_parse [OLD [NEW]]   (reads standard input without a file)
package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

type key struct{ name, unit string }

// run keeps the samples of one output, with the keys in the order in which they appeared.
type run struct {
	order   []key
	samples map[key][]float64
}

func parse(input io.Reader) (run, error) {
	r := run{samples: map[key][]float64{}}
	scanner := bufio.NewScanner(input)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		// A result line is a name, an iteration count, and then pairs of a value and its unit.
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		if _, err := strconv.Atoi(fields[1]); err != nil {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				break
			}
			k := key{strings.TrimPrefix(fields[0], "Benchmark"), fields[i+1]}
			if r.samples[k] == nil {
				r.order = append(r.order, k)
			}
			r.samples[k] = append(r.samples[k], value)
		}
	}
	return r, scanner.Err()
}

func stats(values []float64) (mean, spread, low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		mean += v / float64(len(values))
		low, high = math.Min(low, v), math.Max(high, v)
	}
	for _, v := range values {
		spread += (v - mean) * (v - mean)
	}
	if len(values) > 1 {
		spread = math.Sqrt(spread / float64(len(values)-1))
	}
	return mean, spread, low, high
}

func load(path string) run {
	input := os.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			fail(2, "%v\nusage: bench_parse [OLD [NEW]]", err)
		}
		defer file.Close()
		input = file
	}
	r, err := parse(input)
	if err != nil {
		fail(2, "cannot read %s: %v", path, err)
	}
	if len(r.order) == 0 {
		fail(1, "no benchmark results in %s", path)
	}
	return r
}

func fail(code int, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench_parse: "+format+"\n", args...)
	os.Exit(code)
}

func main() {
	paths := append(os.Args[1:], "-")
	if len(os.Args) > 3 {
		fail(2, "too many arguments\nusage: bench_parse [OLD [NEW]]")
	}
	before := load(paths[0])
	if len(os.Args) < 3 {
		fmt.Println("name\tunit\tmean\tstdev\tmin\tmax\truns")
		for _, k := range before.order {
			mean, spread, low, high := stats(before.samples[k])
			fmt.Printf("%s\t%s\t%.6g\t%.3g\t%.6g\t%.6g\t%d\n", k.name, k.unit, mean, spread, low, high, len(before.samples[k]))
		}
		return
	}
	after := load(paths[1])
	fmt.Println("name\tunit\told\tnew\tchange\tnote")
	for _, k := range before.order {
		if after.samples[k] == nil {
			fmt.Printf("%s\t%s\tonly in %s\n", k.name, k.unit, paths[0])
			continue
		}
		old, _, oldLow, oldHigh := stats(before.samples[k])
		now, _, nowLow, nowHigh := stats(after.samples[k])
		change, note := "same", ""
		if old != 0 && old != now {
			change = fmt.Sprintf("%+.1f%%", 100*(now-old)/old)
		} else if old != now {
			change = "from zero"
		}
		// Ranges that overlap, or single runs, are no evidence of a real change.
		if old != now && (len(before.samples[k]) < 2 || len(after.samples[k]) < 2) {
			note = "single run"
		} else if old != now && nowLow <= oldHigh && oldLow <= nowHigh {
			note = "ranges overlap"
		}
		fmt.Printf("%s\t%s\t%.6g\t%.6g\t%s\t%s\n", k.name, k.unit, old, now, change, note)
	}
	for _, k := range after.order {
		if before.samples[k] == nil {
			fmt.Printf("%s\t%s\tonly in %s\n", k.name, k.unit, paths[1])
		}
	}
}
