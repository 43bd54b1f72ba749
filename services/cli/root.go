package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/status"
	"gopkg.in/yaml.v3"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/reason"
)

// Streams are a program's standard streams and surroundings.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Environ  []string
	// Terminal says that Err is a terminal, which gets progress.
	Terminal bool
}

// app is what the commands share.
type app struct {
	Streams

	addr, token, ca, output, configFile string
	tls                                 bool
}

// errUsage marks errors of usage: exit code 2.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return errUsage{fmt.Errorf(format, args...)} }

// errSilent ends a command that has said what is wrong itself: exit code 1.
var errSilent = errors.New("failed")

// Execute runs the command line and returns its exit code.
func Execute(ctx context.Context, args []string, s Streams) int {
	a := &app{Streams: s}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	started := false
	before := root.PersistentPreRunE
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		started = true
		return before(cmd, args)
	}
	err := root.ExecuteContext(ctx)
	var usage errUsage
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSilent):
		return 1
	case errors.As(err, &usage) || !started:
		fmt.Fprintf(s.Err, "nova: %v\nSee nova --help.\n", err)
		return 2
	}
	fmt.Fprintln(s.Err, "nova: "+explain(err))
	return 1
}

// explain turns an error into a sentence for people.
func explain(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := st.Message()
	if r := reason.Of(err); r != "" && !strings.Contains(text, string(r)) {
		text += " (" + string(r) + ")"
	}
	if o := reason.OutcomeOf(err); o == reason.Unknown {
		text += "; it is unknown whether it was stored"
	}
	return text
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "nova",
		Short:         "nova appends to, reads and manages durable streams",
		Long:          "nova appends to, reads and manages the streams of a Nova constellation.\nA stream is named BUCKET/STREAM. Every flag has an environment twin: NOVA_ and its name, for example NOVA_ADDR.",
		Version:       config.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", "127.0.0.1:7780", "host:port of a gateway or novad")
	f.StringVar(&a.token, "token", "", "credential, sent as a bearer token")
	f.BoolVar(&a.tls, "tls", false, "connect with TLS")
	f.StringVar(&a.ca, "ca", "", "PEM file of the authorities to trust; implies --tls")
	f.StringVarP(&a.output, "output", "o", "text", "text or json")
	f.StringVar(&a.configFile, "config", "", "YAML file of flags; unknown keys fail")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.settings(cmd) }
	root.AddCommand(a.bucketCommand(), a.streamCommand(), a.appendCommand(), a.readCommand(), a.tailCommand(), a.checkTailCommand(),
		a.trimCommand(), a.fenceCommand(), a.verifyCommand(), a.fleetCommand(), a.nodeCommand(), a.shardCommand(), a.chainCommand(), a.tokenCommand(), a.printConfigCommand())
	return root
}

// settings applies the environment and the file to flags that were not given.
func (a *app) settings(cmd *cobra.Command) error {
	env := map[string]string{}
	for _, kv := range a.Environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	if v, ok := env["NOVA_CONFIG"]; ok && !cmd.Flags().Changed("config") {
		a.configFile = v
	}
	file := map[string]any{}
	if a.configFile != "" {
		b, err := os.ReadFile(a.configFile)
		if err != nil {
			return usagef("--config: %w", err)
		}
		if err := yaml.Unmarshal(b, &file); err != nil {
			return usagef("--config %s: %w", a.configFile, err)
		}
		for k := range file {
			if cmd.Flags().Lookup(k) == nil && cmd.Root().PersistentFlags().Lookup(k) == nil {
				return usagef("--config %s: unknown key %q", a.configFile, k)
			}
		}
	}
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || err != nil || f.Name == "config" || f.Name == "help" || f.Name == "version" {
			return
		}
		value, ok := env[config.Env(f.Name)]
		if !ok {
			var v any
			if v, ok = file[f.Name]; ok {
				value = fmt.Sprint(v)
			}
		}
		if ok {
			if serr := cmd.Flags().Set(f.Name, value); serr != nil {
				err = usagef("%s: %w", config.Env(f.Name), serr)
			}
		}
	})
	if err == nil && a.output != "text" && a.output != "json" {
		err = usagef("--output must be text or json, is %q", a.output)
	}
	return err
}

func (a *app) printConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use: "print-config", Short: "show the effective settings", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			values := map[string]string{}
			cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
				if f.Name != "token" || f.Value.String() == "" {
					values[f.Name] = f.Value.String()
				} else {
					values[f.Name] = "(set)"
				}
			})
			b, err := yaml.Marshal(values)
			if err != nil {
				return err
			}
			_, err = a.Out.Write(b)
			return err
		},
	}
}

// connect returns a client; call the function when done.
func (a *app) connect() (*client.Client, func(), error) {
	o := client.Options{Token: a.token}
	if a.tls || a.ca != "" {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if a.ca != "" {
			pem, err := os.ReadFile(a.ca)
			if err != nil {
				return nil, nil, usagef("--ca: %w", err)
			}
			o.TLS.RootCAs = x509.NewCertPool()
			if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
				return nil, nil, usagef("--ca %s holds no certificate", a.ca)
			}
		}
	}
	c, err := client.Dial(a.addr, o)
	if err != nil {
		return nil, nil, usagef("--addr: %w", err)
	}
	return c, func() { _ = c.Close() }, nil
}

// callTimeout limits one small call.
const callTimeout = 30 * time.Second

// call connects and runs f with a deadline.
func (a *app) call(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	c, done, err := a.connect()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
	defer cancel()
	return f(ctx, c)
}

// show prints v as JSON, or lets text print it.
func (a *app) show(v any, text func(io.Writer)) error {
	if a.output == "json" {
		enc := json.NewEncoder(a.Out)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	text(a.Out)
	return nil
}

// streamName splits BUCKET/STREAM at the first slash.
func streamName(s string) (bucket, name string, err error) {
	bucket, name, ok := strings.Cut(s, "/")
	if !ok || bucket == "" || name == "" {
		return "", "", usagef("a stream is named BUCKET/STREAM, got %q", s)
	}
	return bucket, name, nil
}

func when(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}
