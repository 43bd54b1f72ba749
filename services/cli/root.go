package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"gopkg.in/yaml.v3"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/direct"
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

	notices time.Duration // between lines about a wait, 0: the usual; for tests
}

// app is what the commands share.
type app struct {
	Streams

	addr, token, ca, output, configFile string
	consul, constellation               string
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
	case closedPipe(err):
		return 0 // whoever reads the output has enough
	case errors.Is(err, errSilent):
		return 1
	case errors.As(err, &usage) || !started:
		fmt.Fprintf(s.Err, "nova: %v\nSee nova --help.\n", err)
		return 2
	}
	fmt.Fprintln(s.Err, "nova: "+a.explain(err))
	return 1
}

// explain turns an error into a sentence for people.
func (a *app) explain(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := st.Message()
	if reason.Of(err) == "" && st.Code() == codes.Unavailable && strings.Contains(text, "connection error") {
		// The transport's own words end in what the system said.
		said := strings.TrimSuffix(text[strings.LastIndex(text, ": ")+2:], `"`)
		text = fmt.Sprintf("cannot reach %s: %s", a.whom(), said)
	}
	// What a wrapper added stands before the status it wraps.
	text = strings.ReplaceAll(text, fmt.Sprintf("rpc error: code = %s desc = ", st.Code()), "")
	if r := reason.Of(err); r != "" && r != reason.Unimplemented && !strings.Contains(text, string(r)) {
		text += " (" + string(r) + ")"
	}
	if first := reason.Meta(err, reason.KeyFirstSeq); first != "" && !strings.Contains(text, first) {
		text += "; the first record there is has number " + first
	}
	if o := reason.OutcomeOf(err); o == reason.Unknown {
		text += "; it is unknown whether what followed was stored"
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
	root.SetVersionTemplate("nova {{.Version}}\n")
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", "127.0.0.1:7780", "host:port of a gateway or novad")
	f.StringVar(&a.consul, "consul", "", "host:port of a Consul agent: go straight to the services that it knows, inside the trust domain, instead of --addr (of the two, what the command line names counts; --addr if both are named elsewhere)")
	f.StringVar(&a.constellation, "constellation", "nova", "with --consul: name of the deployment")
	f.StringVar(&a.token, "token", "", "credential, sent as a bearer token")
	f.BoolVar(&a.tls, "tls", false, "connect with TLS")
	f.StringVar(&a.ca, "ca", "", "PEM file of the authorities to trust; implies --tls")
	f.StringVarP(&a.output, "output", "o", "text", "text or json")
	f.StringVar(&a.configFile, "config", "", "YAML file of flags; unknown keys fail")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.settings(cmd) }
	root.AddCommand(a.bucketCommand(), a.streamCommand(), a.appendCommand(), a.readCommand(), a.tailCommand(), a.checkTailCommand(),
		a.trimCommand(), a.fenceCommand(), a.verifyCommand(), a.fleetCommand(), a.nodeCommand(), a.shardCommand(), a.chainCommand(), a.backgroundCommand(), a.tokenCommand(), a.benchCommand(), a.printConfigCommand())
	return root
}

// settings applies the environment and the file to flags that were not given.
// One file may serve every command: it holds any flag of any of them.
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
	file, err := readConfig(cmd.Root(), a.configFile)
	if err != nil {
		return err
	}
	straight, gateway := cmd.Flags().Changed("consul"), cmd.Flags().Changed("addr")
	if straight && gateway {
		return usagef("--addr and --consul exclude each other")
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || err != nil || notConfigured(f.Name) {
			return
		}
		from, values := "--config: "+f.Name, file[f.Name]
		if v, ok := env[config.Env(f.Name)]; ok {
			from, values = config.Env(f.Name), []string{v}
		}
		for _, v := range values {
			if serr := cmd.Flags().Set(f.Name, v); serr != nil && err == nil {
				err = usagef("%s: %w", from, serr)
			}
		}
	})
	if !straight && cmd.Flags().Changed("addr") {
		a.consul = "" // it stands there for the servers
	}
	if err == nil && a.consul != "" && a.token != "" {
		// Sequencers and readers ask for none: to send one would promise too much.
		err = usagef("--token cannot be sent with --consul")
	}
	if err == nil && a.output != "text" && a.output != "json" {
		err = usagef("--output must be text or json, is %q", a.output)
	}
	if err == nil {
		if gerr := cmd.ValidateFlagGroups(); gerr != nil {
			err = errUsage{gerr}
		}
	}
	return err
}

// notConfigured are flags that only a command line gives.
func notConfigured(flag string) bool { return flag == "config" || flag == "help" || flag == "version" }

// readConfig reads a YAML file of flags, as text, as they would be given.
func readConfig(root *cobra.Command, name string) (map[string][]string, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("--config: %w", err)
	}
	var doc map[string]yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, usagef("--config %s: %w", name, err)
	}
	known := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		add := func(f *pflag.Flag) { known[f.Name] = !notConfigured(f.Name) }
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	out := map[string][]string{}
	keys := slices.Sorted(maps.Keys(doc)) // the same mistake is reported each time
	for _, k := range keys {
		node := doc[k]
		if !known[k] {
			return nil, usagef("--config %s, line %d: unknown key %q", name, node.Line, k)
		}
		nodes := []*yaml.Node{&node}
		if node.Kind == yaml.SequenceNode {
			nodes = node.Content
		}
		out[k] = []string{}
		for _, n := range nodes {
			if n.Kind != yaml.ScalarNode {
				return nil, usagef("--config %s, line %d: %s: a plain value or a list is expected", name, node.Line, k)
			}
			out[k] = append(out[k], n.Value)
		}
	}
	return out, nil
}

func (a *app) printConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use: "print-config", Short: "show the effective settings that all commands share", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			values := map[string]any{}
			cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
				switch {
				case notConfigured(f.Name):
				case f.Name == "token" && f.Value.String() != "":
					values[f.Name] = "(set)"
				case f.Value.Type() == "bool":
					values[f.Name] = f.Value.String() == "true"
				default:
					values[f.Name] = f.Value.String()
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

// duration is a flag that also takes days.
type duration time.Duration

func (d *duration) Set(s string) error {
	v, err := config.ParseDuration(s)
	if err == nil {
		*d = duration(v)
	}
	return err
}

func (d *duration) String() string { return config.FormatDuration(time.Duration(*d)) }
func (d *duration) Type() string   { return "duration" }

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
	if a.consul != "" {
		c, err := direct.Dial(direct.Options{Consul: a.consul, Constellation: a.constellation, TLS: o.TLS})
		if err != nil {
			return nil, nil, usagef("--consul: %w", err)
		}
		return c.Client, func() { _ = c.Close() }, nil
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
