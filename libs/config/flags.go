package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// Prefix begins the environment twin of every flag.
const Prefix = "NOVA_"

// Env returns the environment twin of a flag: NOVA_HTTP_LISTEN of http-listen.
func Env(flag string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Flags declares the settings of a program. Each help text names the unit and
// what leaving it out means, where the default does not say so.
type Flags struct {
	set  *pflag.FlagSet
	file string // --config
}

func newFlags(name string) *Flags {
	f := &Flags{set: pflag.NewFlagSet(name, pflag.ContinueOnError)}
	f.set.SortFlags = false
	f.set.Usage = func() {} // said once, by Program
	f.String(&f.file, "config", "", "YAML file with any of these flags as keys")
	return f
}

// String declares a text.
func (f *Flags) String(p *string, name, def, help string) { f.set.StringVar(p, name, def, help) }

// Strings declares a list: a flag that is repeated or has commas, a YAML list.
func (f *Flags) Strings(p *[]string, name string, def []string, help string) {
	f.set.StringSliceVar(p, name, def, help)
}

// Bool declares a switch.
func (f *Flags) Bool(p *bool, name string, def bool, help string) { f.set.BoolVar(p, name, def, help) }

// Int declares a number that is not negative.
func (f *Flags) Int(p *int, name string, def int, help string) {
	*p = def
	f.set.Var(&number{text: "int", get: func() int64 { return int64(*p) }, set: func(n int64) { *p = int(n) }}, name, help)
}

// Uint32 declares a number that is not negative.
func (f *Flags) Uint32(p *uint32, name string, def uint32, help string) {
	f.set.Uint32Var(p, name, def, help)
}

// Duration declares a duration, with days: 90s, 1h30m, 7d.
func (f *Flags) Duration(p *time.Duration, name string, def time.Duration, help string) {
	*p = def
	f.set.Var((*duration)(p), name, help)
}

// MiB declares a size given in MiB; p holds bytes.
func (f *Flags) MiB(p *int64, name string, def int, help string) {
	*p = int64(def) << 20
	f.set.Var(&number{text: "MiB", get: func() int64 { return *p >> 20 }, set: func(n int64) { *p = n << 20 }}, name, help)
}

// parse reads arguments, environment and file; what remains are the
// arguments that are no flags.
func (f *Flags) parse(args []string, environ []string) ([]string, error) {
	if err := f.set.Parse(args); err != nil {
		return nil, f.suggest(err)
	}
	env := map[string]string{}
	for _, e := range environ {
		if k, v, ok := strings.Cut(e, "="); ok {
			env[k] = v
		}
	}
	given := map[string]bool{}
	f.set.Visit(func(fl *pflag.Flag) { given[fl.Name] = true })
	var err error
	f.set.VisitAll(func(fl *pflag.Flag) {
		v, ok := env[Env(fl.Name)]
		if !ok || given[fl.Name] || err != nil {
			return
		}
		given[fl.Name] = true
		if serr := f.set.Set(fl.Name, v); serr != nil {
			err = fmt.Errorf("%s: %w", Env(fl.Name), serr)
		}
	})
	if err == nil && f.file != "" {
		err = f.read(given)
	}
	return f.set.Args(), err
}

// read takes from the file what neither a flag nor the environment gave.
func (f *Flags) read(given map[string]bool) error {
	data, err := os.ReadFile(f.file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var doc map[string]yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("--config %s: %w", f.file, err)
	}
	keys := make([]string, 0, len(doc))
	for k := range doc {
		keys = append(keys, k)
	}
	slices.Sort(keys) // the same mistake is reported each time
	for _, k := range keys {
		node := doc[k]
		fl := f.set.Lookup(k)
		if fl == nil || k == "config" {
			return fmt.Errorf("--config %s, line %d: unknown key %q%s", f.file, node.Line, k, f.nearest(k))
		}
		values, err := scalars(&node)
		if err != nil {
			return fmt.Errorf("--config %s, line %d: %s: %w", f.file, node.Line, k, err)
		}
		if given[k] {
			continue
		}
		if list, ok := fl.Value.(pflag.SliceValue); ok {
			err = list.Replace(values)
		} else if len(values) != 1 || node.Kind == yaml.SequenceNode {
			err = fmt.Errorf("one value is expected")
		} else {
			err = f.set.Set(k, values[0])
		}
		if err != nil {
			return fmt.Errorf("--config %s, line %d: %s: %w", f.file, node.Line, k, err)
		}
	}
	return nil
}

func scalars(n *yaml.Node) ([]string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return []string{""}, nil
		}
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		out := make([]string, 0, len(n.Content))
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("a list of plain values is expected")
			}
			out = append(out, c.Value)
		}
		return out, nil
	}
	return nil, fmt.Errorf("a plain value or a list is expected")
}

// effective returns the settings as YAML, in the order of declaration.
func (f *Flags) effective() ([]byte, error) {
	doc := yaml.Node{Kind: yaml.MappingNode}
	var err error
	f.set.VisitAll(func(fl *pflag.Flag) {
		if fl.Name == "config" || err != nil {
			return
		}
		var value yaml.Node
		err = value.Encode(plain(fl.Value))
		doc.Content = append(doc.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: fl.Name}, &value)
	})
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(&doc)
}

// plain returns a flag's value as YAML should write it.
func plain(v pflag.Value) any {
	switch v := v.(type) {
	case pflag.SliceValue:
		return v.GetSlice()
	case *number:
		return v.get()
	}
	switch v.Type() {
	case "bool":
		return v.String() == "true"
	case "uint32":
		var n uint32
		_, _ = fmt.Sscan(v.String(), &n) // what pflag formats, it parsed
		return n
	}
	return v.String()
}

// suggest adds the nearest flag to pflag's complaint.
func (f *Flags) suggest(err error) error {
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		return fmt.Errorf("%w%s", err, f.nearest(name))
	}
	return err
}

// nearest returns ", did you mean ...?" if a flag is similar.
func (f *Flags) nearest(name string) string {
	best, distance := "", 1+len(name)/2
	f.set.VisitAll(func(fl *pflag.Flag) {
		if d := edits(name, fl.Name); d < distance {
			best, distance = fl.Name, d
		}
	})
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// edits returns the Levenshtein distance; an underscore is as good as a hyphen.
func edits(a, b string) int {
	a = strings.ReplaceAll(a, "_", "-")
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			corner, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, corner+cost)
		}
	}
	return row[len(b)]
}
