package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// Version is set when a program is linked: -ldflags "-X ...config.Version=v1".
var Version = "unknown"

// Program is one command. Main and Execute call its functions in the order of
// the fields.
type Program struct {
	Name  string
	About string // one or more lines
	// Flags declares the settings.
	Flags func(*Flags)
	// Check completes and validates all settings before anything is opened; an
	// error is one of usage.
	Check func() error
	// Run works until ctx ends, which SIGINT and SIGTERM do.
	Run func(ctx context.Context) error
	// Commands are run in Run's place when the first argument names one; the
	// flags and Check are the same.
	Commands []Command
}

// Command is another thing a program does.
type Command struct {
	Name  string
	About string
	Run   func(ctx context.Context) error
}

// Main runs the program and exits. A second signal ends it at once.
func (p Program) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(p.Execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// Execute runs the program and returns its exit code.
func (p Program) Execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	f := newFlags(p.Name)
	p.Flags(f)
	version := f.set.Bool("version", false, "print the version and exit")
	f.set.Lookup("version").Hidden = true
	rest, err := f.parse(withoutVersion(args, version), environ)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, p.help(f))
		return 0
	case *version:
		fmt.Fprintf(stdout, "%s %s\n", p.Name, Version)
		return 0
	case err != nil:
		return p.usage(stderr, err)
	}
	run := p.Run
	if len(rest) > 0 {
		if run, err = p.command(f, rest, stdout); err != nil {
			return p.usage(stderr, err)
		}
	}
	if len(rest) == 0 || rest[0] != "print-flags" {
		if err := p.Check(); err != nil {
			return p.usage(stderr, err)
		}
	}
	if err := run(ctx); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	return 0
}

func (p Program) usage(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "%s: %v\nSee %s --help.\n", p.Name, err, p.Name)
	return 2
}

// command returns what the first argument names.
func (p Program) command(f *Flags, args []string, stdout io.Writer) (func(context.Context) error, error) {
	if len(args) > 1 {
		return nil, fmt.Errorf("unexpected argument %q", args[1])
	}
	for _, c := range p.Commands {
		if c.Name == args[0] {
			return c.Run, nil
		}
	}
	switch args[0] {
	case "print-config":
		return func(context.Context) error {
			out, err := f.effective()
			if err == nil {
				_, err = stdout.Write(out)
			}
			return err
		}, nil
	case "print-flags":
		return func(context.Context) error {
			_, err := io.WriteString(stdout, p.markdown(f))
			return err
		}, nil
	}
	return nil, fmt.Errorf("unknown command %q", args[0])
}

func (p Program) help(f *Flags) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s [flags] [command]\n\nCommands (none: run):\n", strings.TrimSpace(p.About), p.Name)
	for _, c := range p.Commands {
		fmt.Fprintf(&b, "  %-14s %s\n", c.Name, c.About)
	}
	fmt.Fprintf(&b, "  %-14s %s\n  %-14s %s\n", "print-config", "print the effective settings as YAML", "print-flags", "print the flags as a Markdown table")
	fmt.Fprintf(&b, "\nFlags; each may also be an environment variable (%s) or a key of --config:\n", Env("listen"))
	b.WriteString(f.set.FlagUsagesWrapped(110))
	b.WriteString("      --version    print the version and exit\n  -h, --help       print this text and exit\n")
	return b.String()
}

// markdown is the program's part of docs/configuration.md.
func (p Program) markdown(f *Flags) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s\n\n| flag | environment | default | meaning |\n|---|---|---|---|\n", p.Name, strings.TrimSpace(p.About))
	f.set.VisitAll(func(fl *pflag.Flag) {
		if fl.Hidden {
			return
		}
		def := fl.DefValue
		if def != "" && def != "[]" {
			def = "`" + strings.Trim(def, "[]") + "`"
		} else {
			def = ""
		}
		name, help := pflag.UnquoteUsage(fl)
		if name != "" {
			name = " " + name
		}
		fmt.Fprintf(&b, "| `--%s%s` | `%s` | %s | %s |\n", fl.Name, name, Env(fl.Name), def, strings.ReplaceAll(help, "|", "\\|"))
	})
	for _, c := range p.Commands {
		fmt.Fprintf(&b, "\n`%s %s`: %s\n", p.Name, c.Name, c.About)
	}
	return b.String()
}

// withoutVersion finds --version among the arguments, so that it works with
// flags that are wrong.
func withoutVersion(args []string, found *bool) []string {
	for i, a := range args {
		if a == "--" {
			break
		}
		if a == "--version" {
			*found = true
			return append(args[:i:i], args[i+1:]...)
		}
	}
	return args
}
