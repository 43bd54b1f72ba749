package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// duration is a time.Duration as a flag, with days.
type duration time.Duration

func (d *duration) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		*d = duration(v)
	}
	return err
}

func (d *duration) String() string { return FormatDuration(time.Duration(*d)) }
func (d *duration) Type() string   { return "duration" }

// ParseDuration is time.ParseDuration that also takes whole days first: 7d,
// 1d12h. Negative durations are refused.
func ParseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration such as 500ms, 90s, 1h30m or 7d", s)
	rest := s
	var sum time.Duration
	if days, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 31)
		if err != nil || n > 100*365 {
			return 0, bad
		}
		sum, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return sum, nil
		}
	}
	v, err := time.ParseDuration(rest)
	if err != nil || v < 0 || strings.HasPrefix(rest, "+") || strings.HasPrefix(rest, "-") {
		return 0, bad
	}
	return sum + v, nil
}

// FormatDuration writes what ParseDuration reads, without zero parts.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	out := ""
	if d >= day {
		out = strconv.Itoa(int(d/day)) + "d"
		if d %= day; d == 0 {
			return out
		}
	}
	s := d.String()
	if d >= time.Minute {
		s = strings.TrimSuffix(s, "m0s") // 1h0m0s -> 1h0
		if s != d.String() {
			s += "m"
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
	}
	return out + s
}

// number is an integer that is not negative, held in whatever unit.
type number struct {
	text string // the unit
	get  func() int64
	set  func(int64)
}

func (n *number) Set(s string) error {
	v, err := strconv.ParseInt(s, 10, 43) // in MiB it fits an int64 of bytes
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a whole number from 0", s)
	}
	n.set(v)
	return nil
}

func (n *number) String() string { return strconv.FormatInt(n.get(), 10) }
func (n *number) Type() string   { return n.text }
