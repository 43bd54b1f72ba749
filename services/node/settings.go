package node

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/telemetry"
)

// Settings are those of every program.
type Settings struct {
	NodeID        string // unique in the constellation, stable over restarts
	Zone          string
	Constellation string
	Consul        string        // address of the agent, "": discovery in process
	MetricsListen string        // admin pages; "": none
	StopTimeout   time.Duration // for what is under way when the program ends
	LogLevel      string
	LogJSON       bool
}

// Flags declares the settings; metrics is the default of --metrics-listen.
func (s *Settings) Flags(f *config.Flags, metrics string) {
	f.String(&s.NodeID, "node-id", "", "name of this node, unique in the constellation and the same after a restart; empty: the host name")
	f.String(&s.Zone, "zone", "", "failure domain of this node; nodes of the same zone are preferred")
	f.String(&s.Constellation, "constellation", "nova", "name of the deployment in discovery, 1..63 letters, digits and hyphens")
	f.String(&s.Consul, "consul", "", "address of the Consul agent that finds the other nodes, host:port or URL")
	f.String(&s.MetricsListen, "metrics-listen", metrics, "address of /metrics, /healthz, /readyz, /debug/pprof and the admin page; no access control; empty: none")
	f.Duration(&s.StopTimeout, "stop-timeout", 10*time.Second, "how long calls under way may take when the program ends")
	f.String(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.Bool(&s.LogJSON, "log-json", false, "one JSON object per log line instead of key=value text")
}

// Check completes and validates.
func (s *Settings) Check() error {
	if s.NodeID == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-id must be given: the host name is not known: %w", err)
		}
		s.NodeID = name
	}
	// The longest service name and a dot come behind it.
	if limit := discovery.MaxIDBytes - len("."+discovery.ChainWriter); len(s.NodeID) > limit {
		return fmt.Errorf("--node-id has %d bytes, the limit is %d", len(s.NodeID), limit)
	}
	if _, err := telemetry.ParseLevel(s.LogLevel); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	return CheckAddress("--metrics-listen", s.MetricsListen, true)
}

// CheckAddress checks a listen address; optional: it may be empty.
func CheckAddress(flag, address string, optional bool) error {
	if address == "" && optional {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s: %q is not host:port", flag, address)
	}
	return nil
}

// Loopback reports whether only this machine can reach a listen address.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// openRegistry opens discovery by Consul.
func (s *Settings) openRegistry(t *telemetry.Telemetry) (discovery.Registry, error) {
	return consul.Open(consul.Config{Address: s.Consul, Constellation: s.Constellation, Log: t.Log})
}
